/* The kinds of memory of a GPU, each with a way to take a piece of it and one to give it back. */
#pragma once
#include "abi/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

static CUdevice device;

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, result);
    exit(3);
}
#define MUST(call) must(call, #call)

struct piece {
    CUdeviceptr address;
    unsigned old_address;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUmipmappedArray mipmapped;
    CUgraph graph;
    CUgraphExec executable;
    uint64_t bytes;
};

static CUmemoryPool pool;
static CUmemAllocationProp on_device;

#define KIND(name, take, give)                                                                                         \
    static CUresult take_##name(struct piece *piece, uint64_t bytes)                                                   \
    {                                                                                                                  \
        (void)bytes;                                                                                                   \
        return take;                                                                                                   \
    }                                                                                                                  \
    static CUresult give_##name(struct piece *piece)                                                                   \
    {                                                                                                                  \
        return give;                                                                                                   \
    }

KIND(linear, cuMemAlloc_v2(&piece->address, bytes), cuMemFree_v2(piece->address))
KIND(linear_v1, cuMemAlloc(&piece->old_address, (unsigned)bytes), cuMemFree(piece->old_address))
KIND(managed, cuMemAllocManaged(&piece->address, bytes, 1), cuMemFree_v2(piece->address))
KIND(free_async, cuMemAlloc_v2(&piece->address, bytes), cuMemFreeAsync(piece->address, NULL))
KIND(stream, cuMemAllocAsync(&piece->address, bytes, NULL), cuMemFreeAsync(piece->address, NULL))
KIND(stream_ptsz, cuMemAllocAsync_ptsz(&piece->address, bytes, NULL), cuMemFreeAsync_ptsz(piece->address, NULL))
KIND(stream_free, cuMemAllocAsync(&piece->address, bytes, NULL), cuMemFree_v2(piece->address))
KIND(pool, cuMemAllocFromPoolAsync(&piece->address, bytes, pool, NULL), cuMemFreeAsync(piece->address, NULL))
KIND(pool_ptsz, cuMemAllocFromPoolAsync_ptsz(&piece->address, bytes, pool, NULL),
     cuMemFreeAsync_ptsz(piece->address, NULL))

static CUresult take_pitch(struct piece *piece, uint64_t bytes)
{
    size_t pitch;
    return cuMemAllocPitch_v2(&piece->address, &pitch, 4000, bytes / 4096, 4); /* rows of 4,000 lie 4,096 apart */
}
static CUresult give_pitch(struct piece *piece)
{
    return cuMemFree_v2(piece->address);
}
static CUresult take_pitch_v1(struct piece *piece, uint64_t bytes)
{
    unsigned pitch;
    return cuMemAllocPitch(&piece->old_address, &pitch, 4000, (unsigned)(bytes / 4096), 4);
}
static CUresult give_pitch_v1(struct piece *piece)
{
    return cuMemFree(piece->old_address);
}

struct descriptor_v1 {
    unsigned width, height;
    CUarray_format format;
    unsigned channels;
};
struct descriptor3d_v1 {
    unsigned width, height, depth;
    CUarray_format format;
    unsigned channels, flags;
};
KIND(array, cuArrayCreate_v2(&piece->array, &(CUDA_ARRAY_DESCRIPTOR){1024, bytes / 4096, CU_AD_FORMAT_FLOAT, 1}),
     cuArrayDestroy(piece->array))
KIND(array_v1,
     cuArrayCreate(&piece->array, &(struct descriptor_v1){1024, (unsigned)(bytes / 4096), CU_AD_FORMAT_FLOAT, 1}),
     cuArrayDestroy(piece->array))
KIND(array_3d,
     cuArray3DCreate_v2(&piece->array,
                        &(CUDA_ARRAY3D_DESCRIPTOR){256, 64, bytes / (256 * 64 * 8), CU_AD_FORMAT_HALF, 4, 0}),
     cuArrayDestroy(piece->array))
KIND(array_3d_v1,
     cuArray3DCreate(&piece->array, &(struct descriptor3d_v1){256, 64, (unsigned)(bytes / (256 * 64 * 8)),
                                                              CU_AD_FORMAT_HALF, 4, 0}),
     cuArrayDestroy(piece->array))
KIND(mipmap,
     cuMipmappedArrayCreate(&piece->mipmapped,
                            &(CUDA_ARRAY3D_DESCRIPTOR){1024, bytes / 8192, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 4),
     cuMipmappedArrayDestroy(piece->mipmapped))

static CUresult take_vmm(struct piece *piece, uint64_t bytes)
{
    CUresult result = cuMemCreate(&piece->handle, bytes, &on_device, 0);
    piece->bytes = bytes;
    if (result != CUDA_SUCCESS)
        return result;
    MUST(cuMemAddressReserve(&piece->address, bytes, 0, 0, 0));
    MUST(cuMemMap(piece->address, bytes, 0, piece->handle, 0));
    MUST(cuMemRelease(piece->handle)); /* the mapping alone keeps the memory */
    return result;
}
static CUresult give_vmm(struct piece *piece)
{
    return cuMemUnmap(piece->address, piece->bytes);
}

/* Released once, retained once, mapped: each of the three holds the memory. */
static CUresult take_vmm_retained(struct piece *piece, uint64_t bytes)
{
    CUresult result = take_vmm(piece, bytes);
    if (result == CUDA_SUCCESS)
        MUST(cuMemRetainAllocationHandle(&piece->handle, (void *)(uintptr_t)(piece->address + MIB)));
    if (result == CUDA_SUCCESS)
        MUST(cuMemUnmap(piece->address, bytes));
    return result;
}
static CUresult give_vmm_retained(struct piece *piece)
{
    return cuMemRelease(piece->handle);
}

static CUresult take_vmm_at(struct piece *piece, uint64_t bytes, CUmemLocationType type)
{
    CUmemAllocationProp there = on_device;
    there.location.type = type;
    return cuMemCreate(&piece->handle, bytes, &there, 0);
}
KIND(vmm_domain, take_vmm_at(piece, bytes, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN), cuMemRelease(piece->handle))
KIND(vmm_unknown, take_vmm_at(piece, bytes, (CUmemLocationType)9), cuMemRelease(piece->handle))

/* Pools that no program has made. */
static CUresult take_default(struct piece *piece, uint64_t bytes, CUmemLocation location, CUmemAllocationType type)
{
    MUST(cuMemGetDefaultMemPool(&pool, &location, type));
    return cuMemAllocFromPoolAsync(&piece->address, bytes, pool, NULL);
}
KIND(default_pool,
     take_default(piece, bytes, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ALLOCATION_TYPE_PINNED),
     cuMemFreeAsync(piece->address, NULL))
KIND(managed_pool,
     take_default(piece, bytes, (CUmemLocation){CU_MEM_LOCATION_TYPE_NONE, 0}, CU_MEM_ALLOCATION_TYPE_MANAGED),
     cuMemFreeAsync(piece->address, NULL))

static CUresult take_current_pool(struct piece *piece, uint64_t bytes)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_HOST, 0};
    MUST(cuMemGetMemPool(&pool, &location, CU_MEM_ALLOCATION_TYPE_MANAGED));
    return cuMemAllocFromPoolAsync(&piece->address, bytes, pool, NULL);
}
static CUresult give_current_pool(struct piece *piece)
{
    return cuMemFreeAsync(piece->address, NULL);
}

static CUresult take_graph(struct piece *piece, uint64_t bytes)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                           .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
                                             .bytesize = bytes};
    MUST(cuGraphCreate(&piece->graph, 0));
    MUST(cuGraphAddMemAllocNode(&node, piece->graph, NULL, 0, &parameters));
    MUST(cuGraphInstantiateWithFlags(&piece->executable, piece->graph, 0));
    piece->address = parameters.dptr;
    CUresult result = cuGraphLaunch(piece->executable, NULL);
    if (result != CUDA_SUCCESS)
        MUST(cuGraphExecDestroy(piece->executable));
    return result;
}
/* The memory node is in a child of the graph, and that is a copy of the child that it was made from. */
static CUresult take_graph_child(struct piece *piece, uint64_t bytes)
{
    CUgraph child;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                           .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
                                             .bytesize = bytes};
    MUST(cuGraphCreate(&child, 0));
    MUST(cuGraphAddMemAllocNode(&node, child, NULL, 0, &parameters));
    MUST(cuGraphCreate(&piece->graph, 0));
    MUST(cuGraphAddChildGraphNode(&node, piece->graph, NULL, 0, child));
    MUST(cuGraphInstantiateWithFlags(&piece->executable, piece->graph, 0));
    piece->address = parameters.dptr;
    CUresult result = cuGraphLaunch(piece->executable, NULL);
    if (result != CUDA_SUCCESS)
        MUST(cuGraphExecDestroy(piece->executable));
    return result;
}

static CUresult give_graph(struct piece *piece)
{
    MUST(cuMemFreeAsync(piece->address, NULL));
    MUST(cuStreamSynchronize(NULL));
    return cuGraphExecDestroy(piece->executable);
}

static CUresult give_graph_child(struct piece *piece)
{
    return give_graph(piece);
}

static const struct kind {
    const char *name;
    CUresult (*take)(struct piece *piece, uint64_t bytes);
    CUresult (*give)(struct piece *piece);
} kinds[] = {
#define ROW(name) {#name, take_##name, give_##name}
    ROW(linear),   ROW(linear_v1), ROW(managed),  ROW(free_async),  ROW(pitch),       ROW(pitch_v1),
    ROW(array),    ROW(array_v1),  ROW(array_3d), ROW(array_3d_v1), ROW(mipmap),      ROW(vmm),
    ROW(vmm_retained), ROW(stream), ROW(stream_ptsz), ROW(stream_free), ROW(pool), ROW(pool_ptsz), ROW(graph),
    ROW(vmm_domain), ROW(vmm_unknown), ROW(default_pool), ROW(managed_pool), ROW(current_pool),
    ROW(graph_child),
};

static const struct kind *kind_named(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    fprintf(stderr, "no kind of memory is called %s\n", name);
    exit(2);
}
