#include "tests/mcts/testing/searches.h"

namespace cariama::mcts {

template class LocalTree<example::ConnectFour>;
template class WorkPool<example::ConnectFour>;
template class CopyExchange<example::ConnectFour>;
template class Worker<example::ConnectFour>;
template class SearchProcess<example::ConnectFour>;
template class Search<example::ConnectFour>;
template class PaperTree<example::ConnectFour>;
template class PaperSearch<example::ConnectFour>;
template class LocalTree<testing::TicTacToe>;
template class WorkPool<testing::TicTacToe>;
template class CopyExchange<testing::TicTacToe>;
template class Worker<testing::TicTacToe>;
template class SearchProcess<testing::TicTacToe>;
template class Search<testing::TicTacToe>;
template class LocalTree<testing::PriorGame>;
template class WorkPool<testing::PriorGame>;
template class CopyExchange<testing::PriorGame>;
template class Worker<testing::PriorGame>;
template class SearchProcess<testing::PriorGame>;
template class Search<testing::PriorGame>;
template class LocalTree<testing::ScoreGame>;
template class WorkPool<testing::ScoreGame>;
template class CopyExchange<testing::ScoreGame>;
template class Worker<testing::ScoreGame>;
template class SearchProcess<testing::ScoreGame>;
template class Search<testing::ScoreGame>;

}  // namespace cariama::mcts
