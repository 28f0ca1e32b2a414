// Explicit instantiations of the search templates for these games, compiled once for all tests.
#ifndef CARIAMA_TESTS_MCTS_TESTING_SEARCHES_H_
#define CARIAMA_TESTS_MCTS_TESTING_SEARCHES_H_

#include "docs/examples/connect_four.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"
#include "tests/mcts/testing/prior_game.h"
#include "tests/mcts/testing/score_game.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {

extern template class LocalTree<example::ConnectFour>;
extern template class WorkPool<example::ConnectFour>;
extern template class CopyExchange<example::ConnectFour>;
extern template class Worker<example::ConnectFour>;
extern template class SearchProcess<example::ConnectFour>;
extern template class Search<example::ConnectFour>;
extern template class PaperTree<example::ConnectFour>;
extern template class PaperSearch<example::ConnectFour>;
extern template class LocalTree<testing::TicTacToe>;
extern template class WorkPool<testing::TicTacToe>;
extern template class CopyExchange<testing::TicTacToe>;
extern template class Worker<testing::TicTacToe>;
extern template class SearchProcess<testing::TicTacToe>;
extern template class Search<testing::TicTacToe>;
extern template class LocalTree<testing::PriorGame>;
extern template class WorkPool<testing::PriorGame>;
extern template class CopyExchange<testing::PriorGame>;
extern template class Worker<testing::PriorGame>;
extern template class SearchProcess<testing::PriorGame>;
extern template class Search<testing::PriorGame>;
extern template class LocalTree<testing::ScoreGame>;
extern template class WorkPool<testing::ScoreGame>;
extern template class CopyExchange<testing::ScoreGame>;
extern template class Worker<testing::ScoreGame>;
extern template class SearchProcess<testing::ScoreGame>;
extern template class Search<testing::ScoreGame>;

}  // namespace cariama::mcts

#endif  // CARIAMA_TESTS_MCTS_TESTING_SEARCHES_H_
