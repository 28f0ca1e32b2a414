// Marks the symbols that the dsfabric library exports. All others are hidden (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_DSFABRIC_EXPORT_H_
#define CARIAMA_DSFABRIC_EXPORT_H_

#define CARIAMA_DSFABRIC_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_DSFABRIC_EXPORT_H_
