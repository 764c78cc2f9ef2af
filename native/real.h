/* The real driver's library behind a proxy. */
#pragma once

typedef void (*real_function)(void);

/* The loaded library at `path`, the proxy's DT_NEEDED. One line on stderr and NULL where it is not there, or is the
   proxy itself: its function of that name is `own`. */
void *real_library(const char *path, const char *name, real_function own);

/* Its function, or `absent`. */
real_function real_symbol(void *library, const char *name, real_function absent);
