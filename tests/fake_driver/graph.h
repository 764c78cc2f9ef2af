#pragma once
#include "driver.h"

struct CUgraphNode_st {
    CUgraphNodeType type;
    uint64_t duration_ns, bytes;
    unsigned device;
    CUcontext context; /* of a kernel or memset; NULL: the stream's of the launch */
    CUdeviceptr address; /* of memory nodes, and of a memset's first byte */
    CUgraph child;
    struct CUgraphNode_st *next;
};

struct CUgraph_st {
    struct CUgraphNode_st *first, *last;
    size_t count;
    CUgraphExec executable; /* the one that there may be of a graph that has memory nodes */
};

void graph_drop_nodes(CUgraph graph);
/* Called when the graph of an executable ends. */
void graph_ended(CUgraphExec executable);
/* `flat`: the nodes of child graphs in the place of the children. */
void graph_copy_nodes(CUgraph to, const struct CUgraph_st *from, bool flat);
