// Marks what the riutils library exports; everything else is hidden (-fvisibility=hidden).
#ifndef CARIAMA_RIUTILS_EXPORT_H_
#define CARIAMA_RIUTILS_EXPORT_H_

#define CARIAMA_RIUTILS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_RIUTILS_EXPORT_H_
