#include "driver.h"

#include <string.h>

static const struct symbol {
    const char *name;
    int cuda_version;
    bool per_thread;
    void *address;
} symbols[] = {
#define SYMBOL(symbol, name, version, per_thread) {name, version, per_thread, (void *)symbol},
#include "symbols.def"
#undef SYMBOL
};

/* A driver may hand out other code than what it exports under a name, and this one does for one function. */
static CUresult allocate_by_lookup(CUdeviceptr *address, size_t bytes)
{
    return cuMemAlloc_v2(address, bytes);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int cuda_version, uint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    if (!name || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    const struct symbol *best = NULL;
    bool is_known = false, per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    for (const struct symbol *symbol = symbols; symbol < symbols + sizeof symbols / sizeof symbols[0]; symbol++) {
        if (strcmp(symbol->name, name) != 0)
            continue;
        is_known = true;
        if (symbol->cuda_version > cuda_version || (symbol->per_thread && !per_thread))
            continue;
        if (!best || symbol->cuda_version > best->cuda_version ||
            (symbol->cuda_version == best->cuda_version && symbol->per_thread))
            best = symbol;
    }
    *function = !best ? NULL : best->address == (void *)cuMemAlloc_v2 ? (void *)allocate_by_lookup : best->address;
    CUdriverProcAddressQueryResult found =
        best ? CU_GET_PROC_ADDRESS_SUCCESS
             : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (status)
        *status = found;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int cuda_version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, cuda_version, flags, NULL);
}
