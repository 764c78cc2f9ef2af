/* Uses a GPU as a program does, one kind of memory at a time, and says what came of it as JSON. What the device holds
   is read from the driver's own NVML, behind the proxies: it is the judge. */
#define _GNU_SOURCE
#include "abi/nvml.h"
#include "memory_kinds.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8192

/* The judge. */
static __typeof__(&nvmlDeviceGetMemoryInfo) memory_info;
static nvmlDevice_t judged;

static void *function_of(void *library, const char *name)
{
    void *function = library != NULL ? dlsym(library, name) : NULL;
    if (function == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return function;
}

static const char *judge_library;

static unsigned long long used(void)
{
    nvmlMemory_t memory;
    if (memory_info == NULL) {
        void *library = dlopen(judge_library, RTLD_NOW | RTLD_LOCAL);
        nvmlReturn_t (*init)(void) = function_of(library, "nvmlInit_v2");
        nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) = function_of(library, "nvmlDeviceGetHandleByIndex_v2");
        memory_info = (__typeof__(memory_info))function_of(library, "nvmlDeviceGetMemoryInfo");
        if (init() != NVML_SUCCESS || by_index((unsigned)device, &judged) != NVML_SUCCESS)
            exit(3);
    }
    return memory_info(judged, &memory) == NVML_SUCCESS ? memory.used : 0;
}

static CUcontext primary(CUdevice device)
{
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

static void give_back_to_the_device(void)
{
    MUST(cuCtxSynchronize());
    MUST(cuDeviceGraphMemTrim(device));
    if (pool != NULL)
        MUST(cuMemPoolTrimTo(pool, 0));
}

static unsigned fill(const struct kind *kind, struct piece *pieces, uint64_t bytes, CUresult *end)
{
    unsigned count = 0;
    while (count < MOST && (*end = kind->take(&pieces[count], bytes)) == CUDA_SUCCESS)
        count++;
    return count;
}

/* Twice until no more is given: what was given back must be there again. */
static int command_fill(const char *name, uint64_t bytes)
{
    static struct piece pieces[MOST];
    const struct kind *kind = kind_named(name);
    CUresult end, end_again;
    size_t free_bytes, total;
    primary(device);
    unsigned long long before = used();
    on_device = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    MUST(cuMemPoolCreate(&pool, &(CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}));
    unsigned count = fill(kind, pieces, bytes, &end);
    unsigned long long full = used();
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    for (unsigned i = 0; i < count; i++)
        must(kind->give(&pieces[i]), "giving it back");
    give_back_to_the_device();
    unsigned long long after = used();
    unsigned again = fill(kind, pieces, bytes, &end_again);
    printf("{\"before\": %llu, \"count\": %u, \"error\": %d, \"full\": %llu, \"free\": %zu, \"total\": %zu, "
           "\"after\": %llu, \"again\": %u, \"full_again\": %llu}\n",
           before, count, end, full, free_bytes, total, after, again, used());
    return 0;
}

/* Contexts, first to last. */
static int command_contexts(void)
{
    CUcontext retained, created;
    size_t free_bytes[4], total;
    CUdeviceptr address;
    MUST(cuInit(0));
    CUresult result = cuDevicePrimaryCtxRetain(&retained, device);
    if (result != CUDA_SUCCESS) {
        printf("{\"error\": %d}\n", result);
        return 0;
    }
    MUST(cuCtxSetCurrent(retained));
    MUST(cuMemGetInfo_v2(&free_bytes[0], &total));
    MUST(cuCtxCreate_v2(&created, 0, device));
    MUST(cuMemAlloc_v2(&address, 64 * MIB));
    MUST(cuMemGetInfo_v2(&free_bytes[1], &total));
    MUST(cuCtxDestroy_v2(created));
    MUST(cuCtxSetCurrent(retained));
    MUST(cuMemGetInfo_v2(&free_bytes[2], &total));
    MUST(cuMemAlloc_v2(&address, 64 * MIB));
    MUST(cuDevicePrimaryCtxReset_v2(device));
    MUST(cuDevicePrimaryCtxRetain(&retained, device));
    MUST(cuCtxSetCurrent(retained));
    MUST(cuMemGetInfo_v2(&free_bytes[3], &total));
    printf("{\"error\": 0, \"free\": [%zu, %zu, %zu, %zu], \"total\": %zu}\n", free_bytes[0], free_bytes[1],
           free_bytes[2], free_bytes[3], total);
    return 0;
}

/* Holds `bytes` until its standard input ends. */
static int command_hold(uint64_t bytes)
{
    CUdeviceptr address;
    char byte;
    CUresult result;
    primary(device);
    result = cuMemAlloc_v2(&address, bytes);
    printf("{\"error\": %d}\n", result);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}

static int command_info(void)
{
    size_t free_bytes, total, of_device;
    primary(device);
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    MUST(cuDeviceTotalMem_v2(&of_device, device));
    printf("{\"free\": %zu, \"total\": %zu, \"of_device\": %zu}\n", free_bytes, total, of_device);
    return 0;
}

/* The library is loaded and its table in use before the fork; the driver only afterwards, as it must be. */
static int command_fork(uint64_t bytes, unsigned children, const char *nvml)
{
    nvmlMemory_t memory;
    nvmlDevice_t seen;
    void *library = dlopen(nvml, RTLD_NOW);
    nvmlReturn_t (*init)(void) = function_of(library, "nvmlInit_v2");
    nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) = function_of(library, "nvmlDeviceGetHandleByIndex_v2");
    nvmlReturn_t (*info)(nvmlDevice_t, nvmlMemory_t *) = function_of(library, "nvmlDeviceGetMemoryInfo");
    int go[2], done[2];
    if (pipe(go) != 0 || pipe(done) != 0)
        return 3;
    for (unsigned i = 0; i < children; i++)
        if (fork() == 0) {
            CUdeviceptr address;
            char byte;
            close(go[1]);
            primary(device);
            unsigned char got = (unsigned char)cuMemAlloc_v2(&address, bytes);
            if (write(done[1], &got, 1) != 1 || read(go[0], &byte, 1) != 0)
                _exit(3);
            _exit(0);
        }
    unsigned granted = 0;
    close(done[1]);
    for (unsigned i = 0; i < children; i++) {
        unsigned char got;
        if (read(done[0], &got, 1) != 1)
            return 3;
        granted += got == 0;
    }
    if (init() != NVML_SUCCESS || by_index((unsigned)device, &seen) != NVML_SUCCESS ||
        info(seen, &memory) != NVML_SUCCESS)
        return 3;
    printf("{\"granted\": %u, \"used\": %llu, \"seen\": %llu}\n", granted, used(), memory.used);
    close(go[1]);
    while (wait(NULL) > 0)
        ;
    return 0;
}

/* Takes and gives back at random until it is killed. */
static _Noreturn void command_churn(unsigned seed)
{
    struct piece pieces[16] = {0};
    const struct kind *held[16] = {NULL};
    CUcontext context;
    srand(seed);
    MUST(cuInit(0));
    /* The others may leave no room for it; the memory of the one that was killed comes back. */
    for (CUresult result; (result = cuDevicePrimaryCtxRetain(&context, device)) != CUDA_SUCCESS; usleep(1000))
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            must(result, "the context");
    MUST(cuCtxSetCurrent(context));
    on_device = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    for (;;) {
        static const char *const names[] = {"linear", "vmm", "array", "pitch"};
        unsigned at = (unsigned)rand() % 16;
        if (held[at] != NULL) {
            must(held[at]->give(&pieces[at]), "giving it back");
            held[at] = NULL;
            continue;
        }
        const struct kind *kind = kind_named(names[rand() % 4]);
        uint64_t bytes = (1 + (uint64_t)rand() % 64) * 2 * MIB;
        CUresult result = kind->take(&pieces[at], bytes);
        if (result == CUDA_SUCCESS)
            held[at] = kind;
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            must(result, kind->name);
    }
}

/* Restarts `children` programs that churn, each time one of them has been killed at a random moment, and keeps the most
   that the device ever held. */
static int command_killing(char *self, char **arguments, unsigned wanted, unsigned children)
{
    pid_t pids[64] = {0};
    unsigned long long most = 0;
    unsigned kills = 0;
    srand(1);
    do {
        for (unsigned i = 0; i < children; i++)
            if (pids[i] == 0 && (pids[i] = fork()) == 0) {
                char seed[16];
                snprintf(seed, sizeof seed, "%u", kills * children + i + 1);
                execl(self, self, arguments[1], arguments[2], "churn", seed, NULL);
                _exit(127);
            }
        for (int i = 0; i < 8; i++) {
            unsigned long long sample = used();
            most = sample > most ? sample : most;
            usleep((useconds_t)(rand() % 2000));
        }
        unsigned victim = (unsigned)rand() % children;
        int status = 0;
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], &status, 0);
        if (!WIFSIGNALED(status)) {
            fprintf(stderr, "a process ended by itself\n");
            most = ~0ull;
        }
        pids[victim] = 0;
        kills++;
    } while (kills < wanted && most != ~0ull);
    for (unsigned i = 0; i < children; i++)
        if (pids[i] != 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    printf("{\"most\": %llu, \"left\": %llu}\n", most, used());
    return 0;
}

/* Memory that the program before an exec had is free in the program after it. */
static int command_exec(char *self, char **arguments, uint64_t bytes)
{
    CUdeviceptr address;
    primary(device);
    MUST(cuMemAlloc_v2(&address, bytes));
    execl(self, self, arguments[1], arguments[2], "fill", "linear", "2097152", NULL);
    return 3;
}

/* Threads of one process, of every kind of memory that a thread may take while others do. */
static void *churn_thread(void *rounds)
{
    static const char *const names[] = {"linear", "vmm", "vmm_retained", "array", "pitch", "stream", "pool"};
    CUcontext context;
    size_t free_bytes, total;
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < *(const unsigned *)rounds; i++) {
        struct piece piece = {0};
        const struct kind *kind = kind_named(names[i % 7]);
        CUresult result = kind->take(&piece, (1 + i % 16) * 4 * MIB);
        if (result == CUDA_SUCCESS)
            must(kind->give(&piece), kind->name);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            must(result, kind->name);
        MUST(cuMemGetInfo_v2(&free_bytes, &total));
    }
    MUST(cuDevicePrimaryCtxRelease_v2(device));
    return NULL;
}

static int command_threads(unsigned threads, unsigned rounds)
{
    pthread_t thread[64];
    size_t free_bytes, total;
    primary(device);
    on_device = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    MUST(cuMemPoolCreate(&pool, &(CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}));
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, churn_thread, &rounds) != 0)
            return 3;
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    give_back_to_the_device();
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    printf("{\"used\": %llu, \"free\": %zu, \"total\": %zu}\n", used(), free_bytes, total);
    return 0;
}

/* memory_client JUDGE DEVICE COMMAND ... */
int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    const char *command = arguments[3];
    device = atoi(arguments[2]);
    judge_library = arguments[1];
    uint64_t number = count > 4 ? strtoull(arguments[4], NULL, 10) : 0;
    if (strcmp(command, "fill") == 0 && count == 6)
        return command_fill(arguments[4], strtoull(arguments[5], NULL, 10));
    if (strcmp(command, "contexts") == 0)
        return command_contexts();
    if (strcmp(command, "hold") == 0)
        return command_hold(number);
    if (strcmp(command, "info") == 0)
        return command_info();
    if (strcmp(command, "fork") == 0 && count == 7)
        return command_fork(number, (unsigned)atoi(arguments[5]), arguments[6]);
    if (strcmp(command, "churn") == 0)
        command_churn((unsigned)number);
    if (strcmp(command, "killing") == 0 && count == 6)
        return command_killing(arguments[0], arguments, (unsigned)number, (unsigned)atoi(arguments[5]));
    if (strcmp(command, "threads") == 0 && count == 6)
        return command_threads((unsigned)number, (unsigned)atoi(arguments[5]));
    if (strcmp(command, "exec") == 0)
        return command_exec(arguments[0], arguments, number);
    return 2;
}
