#include "tests/mcts/testing/searches.h"

namespace cariama::mcts {

template class Worker<example::ConnectFour>;
template class Mirroring<example::ConnectFour>;
template class Site<example::ConnectFour>;
template class Search<example::ConnectFour>;
template class PaperSite<example::ConnectFour>;
template class PaperSearch<example::ConnectFour>;
template class Worker<testing::TicTacToe>;
template class Mirroring<testing::TicTacToe>;
template class Site<testing::TicTacToe>;
template class Search<testing::TicTacToe>;

}  // namespace cariama::mcts
