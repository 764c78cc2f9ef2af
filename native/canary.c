/* canary: a program that runs in a container before its user's program, started by the image's own loader. It finds the
   driver's libraries as the user's program would. If these show, or could give, more of a GPU than the container's
   share, it prints one line to stderr and ends with 1. A library that the loader does not find, and a GPU that the
   libraries do not show, are safe: the user's program cannot use them either. */
#define _GNU_SOURCE /* dladdr */
#include "abi/cuda.h"
#include "abi/nvml.h"
#include "limits.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

/* Programs linked with glibc 2.34 or newer refer to a version of __libc_start_main that older ones lack. So this file
   has a _start of its own, which calls the oldest version. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#elif defined(__x86_64__)
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.2.5\n"
        ".globl _start\n"
        ".type _start,@function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rdx, %r9\n"
        "    popq %rsi\n"
        "    movq %rsp, %rdx\n"
        "    andq $-16, %rsp\n"
        "    pushq %rax\n"
        "    pushq %rsp\n"
        "    xorl %r8d, %r8d\n"
        "    xorl %ecx, %ecx\n"
        "    leaq main(%rip), %rdi\n"
        "    call *__libc_start_main@GOTPCREL(%rip)\n"
        "    hlt\n");
#elif defined(__aarch64__)
__asm__(".symver dladdr,dladdr@GLIBC_2.17");
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.17\n"
        ".globl _start\n"
        ".type _start,%function\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x5, x0\n"
        "    ldr x1, [sp]\n"
        "    add x2, sp, #8\n"
        "    mov x6, sp\n"
        "    adrp x0, main\n"
        "    add x0, x0, :lo12:main\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    bl __libc_start_main\n"
        "    brk #0\n");
#endif

/* Loads the library as the user's program would. False: it is not ours, which lies in ../lib beside this program.
   *library is NULL if the loader finds none. */
static bool find(const char *name, const char *function, void **library)
{
    char ours[64];
    Dl_info found;
    *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (*library == NULL)
        return true;
    snprintf(ours, sizeof ours, "$ORIGIN/../lib/%s", name);
    if (*library == dlopen(ours, RTLD_LAZY | RTLD_NOLOAD))
        return true;
    void *address = dlsym(*library, function);
    fprintf(stderr, "muster canary: %s is %s here, which keeps no share of a GPU; "
                    "take it out of the image, or out of LD_LIBRARY_PATH\n",
            name, address != NULL && dladdr(address, &found) != 0 ? found.dli_fname : "none of the driver's");
    return false;
}

#define CALL(library, function) ((__typeof__(&function))dlsym(library, #function))

static bool within(const char *name, unsigned long long total, const struct gpu_limit *gpu)
{
    if (total <= gpu->mem_bytes)
        return true;
    fprintf(stderr, "muster canary: %s shows %llu MiB of %s, and this container's share is %llu MiB; "
                    "tell the administrator\n",
            name, total >> 20, gpu->uuid, (unsigned long long)gpu->mem_bytes >> 20);
    return false;
}

static bool refused(const char *name)
{
    fprintf(stderr, "muster canary: %s refuses to be used in this container; tell the administrator\n", name);
    return false;
}

static bool check_nvml(const struct limits *limits)
{
    static const char name[] = "libnvidia-ml.so.1";
    void *library;
    if (!find(name, "nvmlInit_v2", &library))
        return false;
    nvmlReturn_t status = library == NULL ? NVML_ERROR_FUNCTION_NOT_FOUND : CALL(library, nvmlInit_v2)();
    if (status == NVML_ERROR_NO_PERMISSION)
        return refused(name);
    for (int i = 0; status == NVML_SUCCESS && i < limits->gpu_count; i++) {
        nvmlDevice_t device;
        nvmlMemory_t memory = {0};
        nvmlMemory_v2_t memory_v2 = {.version = nvmlMemory_v2};
        if (CALL(library, nvmlDeviceGetHandleByUUID)(limits->gpus[i].uuid, &device) != NVML_SUCCESS)
            continue;
        if (CALL(library, nvmlDeviceGetMemoryInfo)(device, &memory) != NVML_SUCCESS)
            return refused(name);
        /* Older drivers lack the second version. */
        if (CALL(library, nvmlDeviceGetMemoryInfo_v2)(device, &memory_v2) != NVML_SUCCESS)
            memory_v2.total = 0;
        if (!within(name, memory.total, &limits->gpus[i]) || !within(name, memory_v2.total, &limits->gpus[i]))
            return false;
    }
    return true;
}

static bool check_cuda(const struct limits *limits)
{
    static const char name[] = "libcuda.so.1";
    void *library;
    if (!find(name, "cuInit", &library))
        return false;
    CUresult status = library == NULL ? CUDA_ERROR_NOT_INITIALIZED : CALL(library, cuInit)(0);
    if (status == CUDA_ERROR_NOT_PERMITTED)
        return refused(name);
    int count = 0;
    if (status != CUDA_SUCCESS || CALL(library, cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return true;
    for (int ordinal = 0; ordinal < count; ordinal++) {
        CUdevice device;
        CUuuid uuid;
        size_t total;
        if (CALL(library, cuDeviceGet)(&device, ordinal) != CUDA_SUCCESS ||
            CALL(library, cuDeviceGetUuid)(&uuid, device) != CUDA_SUCCESS)
            return refused(name);
        int limited = limits_gpu_of_uuid_bytes(limits, (const unsigned char *)uuid.bytes);
        if (limited < 0)
            continue;
        if (CALL(library, cuDeviceTotalMem_v2)(&total, device) != CUDA_SUCCESS)
            return refused(name);
        if (!within(name, total, &limits->gpus[limited]))
            return false;
    }
    return true;
}

int main(void)
{
    const struct limits *limits = limits_get();
    return limits != NULL && check_nvml(limits) && check_cuda(limits) ? 0 : 1;
}
