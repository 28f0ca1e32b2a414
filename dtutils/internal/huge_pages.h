// Requests of madvise(2) that older libc headers lack.
#ifndef CARIAMA_DTUTILS_INTERNAL_HUGE_PAGES_H_
#define CARIAMA_DTUTILS_INTERNAL_HUGE_PAGES_H_

#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

#endif  // CARIAMA_DTUTILS_INTERNAL_HUGE_PAGES_H_
