#pragma once
#include "driver.h"

enum { GRANULARITY = 2 << 20 };

/* Memory lives until its last handle is released, its last mapping is gone, and nothing has it bound. */
struct physical {
    CUmemAllocationProp properties;
    uint64_t bytes;
    unsigned device, handles, mappings, bindings;
    bool is_multicast;
    int shared; /* the number of exported memory, which no process owns; -1: none */
    struct physical *next;
};

/* All under driver_lock, but for physical_keep, which takes it. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);
struct physical *physical_mapped_at(CUdeviceptr address, size_t bytes);
void physical_drop_if_unused(struct physical *physical);
CUmemGenericAllocationHandle physical_keep(struct physical made);
void end_bindings(const void *holder);
