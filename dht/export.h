// Marks the symbols that the dht library exports. All others are hidden (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_DHT_EXPORT_H_
#define CARIAMA_DHT_EXPORT_H_

#define CARIAMA_DHT_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_DHT_EXPORT_H_
