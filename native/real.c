#include "real.h"

#include <dlfcn.h>
#include <stdio.h>

void *real_library(const char *path, const char *name, real_function own)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        fprintf(stderr, "muster fgpu: %s is not loaded: this library must be linked with it\n", path);
    else if (real_symbol(library, name, NULL) == own) {
        fprintf(stderr, "muster fgpu: %s leads to this library itself, not to the driver's\n", path);
        return NULL;
    }
    return library;
}

real_function real_symbol(void *library, const char *name, real_function absent)
{
    real_function function = NULL;
    if (library != NULL)
        *(void **)&function = dlsym(library, name);
    return function != NULL ? function : absent;
}
