/* Physical memory of virtual memory management, and what keeps it. All under vmm_lock(). */
#pragma once
#include <stdbool.h>

#include "hooks.h"

struct memory {
    uint64_t bytes;
    int gpu; /* NOT_LIMITED also for a multicast object, and for memory that another process has made */
    unsigned handles, mappings, bindings;
    bool aliased;   /* it has handles of several values */
    unsigned share; /* its number in shares.h; 0: it is this process's alone */
    bool elsewhere; /* others may have it. Unless it is a share, it stays charged until this process ends */
    bool unseen;    /* nobody can see when those have done with it: it stays charged so long, also as a share */
};

void vmm_lock(void);
void vmm_unlock(void);

/* Return NULL for memory that is not charged. */
struct memory *vmm_of_handle(CUmemGenericAllocationHandle handle);
struct memory *vmm_at(CUdeviceptr address);
/* Notes new memory, or a new object that others are bound to, with one handle. */
void vmm_add(CUmemGenericAllocationHandle handle, const struct memory *made);
void vmm_drop_unused(struct memory *memory);

/* Ends what is bound to a multicast object, or mapped into an array, that is gone. */
void bindings_end(const void *holder);
