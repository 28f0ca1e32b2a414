// Marks the symbols that the mcts library exports. All others are hidden (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_MCTS_EXPORT_H_
#define CARIAMA_MCTS_EXPORT_H_

#define CARIAMA_MCTS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_MCTS_EXPORT_H_
