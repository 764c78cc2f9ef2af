#include "cuda_lookup.h"

#include <string.h>

#include "hooks.h"

/* Returns the hook of the function that the driver has found, so that only symbols that the driver has are hooked. */
static real_function hook_at(real_function found)
{
    for (size_t i = 0; i < fgpu_hook_count; i++)
        if (*fgpu_hooks[i].real == found)
            return fgpu_hooks[i].hook;
    return NULL;
}

/* Returns the hook by the name, the CUDA version and the kind of stream of the request. A driver may return another
   address than the exported one, so that the address alone does not identify the function. */
static real_function hook_named(const char *name, int version, uint64_t flags)
{
    const struct hook *best = NULL;
    for (size_t i = 0; i < fgpu_hook_count; i++) {
        const struct hook *hook = &fgpu_hooks[i];
        if (strcmp(hook->symbol, name) == 0 && strcmp(hook->name, name) != 0)
            return hook->hook;
        if (strcmp(hook->name, name) != 0 || hook->version > version)
            continue;
        if (hook->flag != 0 && (flags & (uint64_t)hook->flag) == 0)
            continue;
        if (best == NULL || hook->flag > best->flag || (hook->flag == best->flag && hook->version > best->version))
            best = hook;
    }
    return best != NULL ? best->hook : NULL;
}

static void swap(const char *name, void **function, int version, uint64_t flags)
{
    if (name == NULL || function == NULL || *function == NULL)
        return;
    real_function found;
    memcpy(&found, function, sizeof found);
    real_function hook = hook_at(found);
    if (hook == NULL)
        hook = hook_named(name, version, flags);
    if (hook != NULL)
        memcpy(function, &hook, sizeof hook);
}

HOOK CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress)(symbol, function, cuda_version, flags);
    if (result == CUDA_SUCCESS)
        swap(symbol, function, cuda_version, flags);
    return result;
}

HOOK CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                                  CUdriverProcAddressQueryResult *status)
{
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, cuda_version, flags, status);
    if (result == CUDA_SUCCESS)
        swap(symbol, function, cuda_version, flags);
    return result;
}
