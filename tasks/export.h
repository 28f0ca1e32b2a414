// Marks what the tasks library exports; everything else is hidden (-fvisibility=hidden).
#ifndef CARIAMA_TASKS_EXPORT_H_
#define CARIAMA_TASKS_EXPORT_H_

#define CARIAMA_TASKS_EXPORT __attribute__((visibility("default")))

#endif  // CARIAMA_TASKS_EXPORT_H_
