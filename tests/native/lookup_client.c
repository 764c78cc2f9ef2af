/* Reaches the driver in one of the ways in which programs do, and says what it then sees: the size of the device, and
   whether more than the cap is given. */
#define _GNU_SOURCE
#include "abi/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

typedef void *(*find_function)(const char *name);
static void *library;
static void *(*find_by)(void *, const char *) = dlsym;
static __typeof__(&cuGetProcAddress) get_proc_address;
static __typeof__(&cuGetProcAddress_v2) get_proc_address_v2;

static void *must(void *found, const char *what)
{
    if (found == NULL) {
        fprintf(stderr, "%s: %s\n", what, dlerror());
        exit(3);
    }
    return found;
}

static void *by_dlsym(const char *name)
{
    return must(find_by(library, name), name);
}

static const char *without_version(const char *name, char *plain)
{
    strcpy(plain, name);
    if (strlen(plain) > 3 && strcmp(plain + strlen(plain) - 3, "_v2") == 0)
        plain[strlen(plain) - 3] = '\0';
    return plain;
}

static void *by_proc_address(const char *name)
{
    char plain[64];
    void *function = NULL;
    if (get_proc_address(without_version(name, plain), &function, 11030, 0) != CUDA_SUCCESS)
        exit(3);
    return must(function, name);
}

static void *by_proc_address_v2(const char *name)
{
    char plain[64];
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    if (get_proc_address_v2(without_version(name, plain), &function, 12000, 0, &status) != CUDA_SUCCESS)
        exit(3);
    return must(function, name);
}

static int look(find_function find, unsigned long long asked)
{
    __typeof__(&cuInit) init = (__typeof__(init))find("cuInit");
    __typeof__(&cuDeviceTotalMem_v2) total_of = (__typeof__(total_of))find("cuDeviceTotalMem_v2");
    __typeof__(&cuDevicePrimaryCtxRetain) retain = (__typeof__(retain))find("cuDevicePrimaryCtxRetain");
    __typeof__(&cuCtxSetCurrent) set_current = (__typeof__(set_current))find("cuCtxSetCurrent");
    __typeof__(&cuMemAlloc_v2) allocate = (__typeof__(allocate))find("cuMemAlloc_v2");
    CUcontext context;
    CUdeviceptr address;
    size_t total = 0;
    CUresult started = init(0);
    total_of(&total, 0);
    if (retain(&context, 0) == CUDA_SUCCESS)
        set_current(context);
    printf("{\"init\": %d, \"total\": %zu, \"above\": %d}\n", started, total, allocate(&address, asked));
    return 0;
}

/* What each name is found to be by cuGetProcAddress, as NAME VERSION FLAGS on the command line. */
static int whose(int count, char **arguments)
{
    for (int i = 0; i + 2 < count; i += 3) {
        Dl_info place = {0};
        void *function = NULL;
        CUdriverProcAddressQueryResult status;
        get_proc_address_v2(arguments[i], &function, atoi(arguments[i + 1]), (uint64_t)atoi(arguments[i + 2]), &status);
        if (function != NULL)
            dladdr(function, &place);
        printf("%s %s\n", function != NULL ? place.dli_fname : "-",
               function != NULL && place.dli_sname != NULL ? place.dli_sname : "-");
    }
    return 0;
}

/* lookup_client WAY BYTES [plugin or names] */
int main(int count, char **arguments)
{
    const char *way = arguments[1];
    unsigned long long asked = strtoull(arguments[2], NULL, 10);
    if (strcmp(way, "dlmopen") == 0) {
        library = must(dlmopen(LM_ID_NEWLM, LIBRARY, RTLD_NOW | RTLD_LOCAL), way);
        return look(by_dlsym, asked);
    }
    if (strcmp(way, "plugin") == 0) {
        void *plugin = must(dlopen(arguments[3], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), way);
        int (*run)(unsigned long long);
        *(void **)&run = must(dlsym(plugin, "run"), way);
        return run(asked);
    }
    int flags = strcmp(way, "global") == 0 ? RTLD_GLOBAL : strcmp(way, "deepbind") == 0 ? RTLD_DEEPBIND : RTLD_LOCAL;
    library = must(dlopen(LIBRARY, RTLD_NOW | flags), way);
    if (strcmp(way, "global") == 0)
        library = RTLD_DEFAULT;
    if (strcmp(way, "libc") == 0)
        *(void **)&find_by = must(dlsym(must(dlopen("libc.so.6", RTLD_NOW), way), "dlsym"), way);
    *(void **)&get_proc_address = dlsym(library, "cuGetProcAddress");
    *(void **)&get_proc_address_v2 = dlsym(library, "cuGetProcAddress_v2");
    if (strcmp(way, "whose") == 0)
        return whose(count - 3, arguments + 3);
    if (strncmp(way, "nested", 6) == 0) {
        void *nested = by_proc_address("cuGetProcAddress");
        *(void **)&get_proc_address = nested;
        nested = by_proc_address_v2("cuGetProcAddress");
        *(void **)&get_proc_address_v2 = nested;
    }
    if (strstr(way, "v1") != NULL)
        return look(by_proc_address, asked);
    if (strstr(way, "v2") != NULL)
        return look(by_proc_address_v2, asked);
    return look(by_dlsym, asked);
}
