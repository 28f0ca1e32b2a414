// Marks the symbols that the tasks library exports. All others are hidden (-fvisibility=hidden).
// Not for users.
#ifndef CARIAMA_TASKS_EXPORT_H_
#define CARIAMA_TASKS_EXPORT_H_

#define CARIAMA_TASKS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_TASKS_EXPORT_H_
