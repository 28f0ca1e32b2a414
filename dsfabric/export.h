// Marks what the dsfabric library exports; everything else is hidden (-fvisibility=hidden).
#ifndef CARIAMA_DSFABRIC_EXPORT_H_
#define CARIAMA_DSFABRIC_EXPORT_H_

#define CARIAMA_DSFABRIC_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_DSFABRIC_EXPORT_H_
