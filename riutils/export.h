// Marks the symbols that the riutils library exports. All other symbols are hidden
// (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_RIUTILS_EXPORT_H_
#define CARIAMA_RIUTILS_EXPORT_H_

#define CARIAMA_RIUTILS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_RIUTILS_EXPORT_H_
