// Marks a symbol as exported by the dtutils library; all unmarked symbols are hidden
// (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_DTUTILS_EXPORT_H_
#define CARIAMA_DTUTILS_EXPORT_H_

#define CARIAMA_DTUTILS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_DTUTILS_EXPORT_H_
