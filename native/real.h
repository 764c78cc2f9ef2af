/* The driver's real library, for which a proxy stands in. */
#pragma once

typedef void (*real_function)(void);

/* Returns the loaded library at `path`, the proxy's DT_NEEDED. NULL, with one line on stderr: it is not loaded, or it
   is the proxy itself, whose function `name` is `own`. */
void *real_library(const char *path, const char *name, real_function own);

/* Returns the library's function, or `absent`. */
real_function real_symbol(void *library, const char *name, real_function absent);
