// Marks the symbols that the bdd library exports. All others are hidden (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_BDD_EXPORT_H_
#define CARIAMA_BDD_EXPORT_H_

#define CARIAMA_BDD_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_BDD_EXPORT_H_
