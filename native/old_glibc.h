/* Oldest versions of the C library's functions. The libraries are built on the host and loaded in containers of any
   image. A newer C library would bind a reference to a version that older images lack, so each reference is bound to
   the oldest version. The Makefile includes this file in every other one (-include). */
#pragma once

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their interceptors have no versions */
#if defined(__x86_64__)
#define OLDEST_GLIBC "GLIBC_2.2.5"
#define ROBUST_GLIBC "GLIBC_2.12"
#elif defined(__aarch64__)
#define OLDEST_GLIBC "GLIBC_2.17"
#define ROBUST_GLIBC "GLIBC_2.17"
#else
#error "fGPU libraries are built for x86_64 and aarch64 only"
#endif
#define BIND(function, version) __asm__(".symver " #function "," #function "@" version)

BIND(dlopen, OLDEST_GLIBC);
BIND(dlsym, OLDEST_GLIBC);
BIND(dlclose, OLDEST_GLIBC);
BIND(dlerror, OLDEST_GLIBC);
BIND(pthread_create, OLDEST_GLIBC);
BIND(pthread_join, OLDEST_GLIBC);
BIND(pthread_detach, OLDEST_GLIBC);
BIND(pthread_sigmask, OLDEST_GLIBC);
BIND(pthread_once, OLDEST_GLIBC);
BIND(pthread_key_create, OLDEST_GLIBC);
BIND(pthread_setspecific, OLDEST_GLIBC);
BIND(pthread_getspecific, OLDEST_GLIBC);
BIND(pthread_mutexattr_init, OLDEST_GLIBC);
BIND(pthread_mutexattr_setpshared, OLDEST_GLIBC);
BIND(pthread_mutexattr_setrobust, ROBUST_GLIBC);
BIND(pthread_mutex_consistent, ROBUST_GLIBC);
#undef BIND
#undef OLDEST_GLIBC
#undef ROBUST_GLIBC
#endif
