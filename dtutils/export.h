// Marks what the dtutils library exports; everything else is hidden (-fvisibility=hidden).
#ifndef CARIAMA_DTUTILS_EXPORT_H_
#define CARIAMA_DTUTILS_EXPORT_H_

#define CARIAMA_DTUTILS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_DTUTILS_EXPORT_H_
