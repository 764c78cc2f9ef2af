#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct limits limits;
static _Atomic(const struct limits *) known;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Not by strtoull(), which newer C libraries bind to a version that older ones lack. */
static bool number_of(const char *word, uint64_t *number)
{
    *number = 0;
    if (word == NULL || *word == '\0')
        return false;
    for (; *word != '\0'; word++) {
        if (*word < '0' || *word > '9' || *number > (UINT64_MAX - 9) / 10)
            return false;
        *number = *number * 10 + (uint64_t)(*word - '0');
    }
    return true;
}

static const char *read_gpu(char *uuid, char *mem_bytes, char *compute, char *limit)
{
    uint64_t milli, limit_milli = 0;
    if (limits.gpu_count == MAX_LIMITED_GPUS)
        return "names too many GPUs";
    struct gpu_limit *gpu = &limits.gpus[limits.gpu_count];
    if (uuid == NULL || strlen(uuid) >= sizeof gpu->uuid || strchr(uuid, '-') == NULL)
        return "gpu needs a UUID";
    if (limits_gpu_of_uuid(&limits, uuid) >= 0)
        return "names a GPU twice";
    if (!number_of(mem_bytes, &gpu->mem_bytes) || gpu->mem_bytes == 0 || gpu->mem_bytes % MEMORY_GRAIN != 0)
        return "the memory of a gpu is bytes, a multiple of 2 MiB";
    if (!number_of(compute, &milli) || milli < 1 || milli > 1000)
        return "the compute share of a gpu is 1 to 1000 thousandths";
    if (limit != NULL && (!number_of(limit, &limit_milli) || limit_milli < milli || limit_milli > 1000))
        return "the compute limit of a gpu is its share or more, up to 1000 thousandths";
    strcpy(gpu->uuid, uuid);
    gpu->limit_milli = (unsigned)limit_milli;
    gpu->compute_milli = (unsigned)milli;
    limits.gpu_count++;
    return NULL;
}

enum { VERSION = 1, KERNEL = 2, COMPUTE = 4, CONTEXT_BYTES = 8, NEEDED = 15, CLASS = 16, OVERCOMMIT = 32 };

static const char *once_only(unsigned *seen, unsigned word)
{
    if (*seen & word)
        return "says something twice";
    *seen |= word;
    return NULL;
}

static const char *read_line(char *line, unsigned *seen)
{
    char *rest = NULL, *words[5] = {NULL};
    int count = 0;
    const char *wrong = NULL;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest)) {
        if (count == 5)
            return "has a line with too many words";
        words[count++] = word;
    }
    if (count == 0)
        return NULL;
    if (strcmp(words[0], "gpu") == 0)
        return count >= 4 ? read_gpu(words[1], words[2], words[3], words[4])
                          : "gpu takes a UUID, bytes, a share and perhaps a limit";
    if (count != 2)
        return "has an entry that is not a name and one value";
    if (strcmp(words[0], "version") == 0) {
        wrong = strcmp(words[1], "1") != 0 ? "is of a version that this library does not know" : NULL;
        return wrong != NULL ? wrong : once_only(seen, VERSION);
    }
    if (strcmp(words[0], "kernel") == 0) {
        if (strlen(words[1]) >= sizeof limits.kernel)
            return "the kernel's id is too long";
        strcpy(limits.kernel, words[1]);
        return once_only(seen, KERNEL);
    }
    if (strcmp(words[0], "compute") == 0) {
        static const char *const modes[] = {[COMPUTE_NONE] = "none", [COMPUTE_FAIR] = "fair", [COMPUTE_HARD] = "hard"};
        for (int mode = COMPUTE_NONE; mode <= COMPUTE_HARD; mode++)
            if (strcmp(words[1], modes[mode]) == 0) {
                limits.compute = (enum compute_mode)mode;
                return once_only(seen, COMPUTE);
            }
        return "compute is fair, hard or none";
    }
    if (strcmp(words[0], "class") == 0) {
        limits.best_effort = strcmp(words[1], "best-effort") == 0;
        return limits.best_effort || strcmp(words[1], "guaranteed") == 0 ? once_only(seen, CLASS)
                                                                         : "class is guaranteed or best-effort";
    }
    if (strcmp(words[0], "overcommit") == 0) {
        uint64_t milli;
        if (!number_of(words[1], &milli) || milli < 1000 || milli > 1000 * 1000)
            return "overcommit is 1000 thousandths or more";
        limits.overcommit_milli = (unsigned)milli;
        return once_only(seen, OVERCOMMIT);
    }
    if (strcmp(words[0], "context_bytes") == 0)
        return number_of(words[1], &limits.context_bytes) ? once_only(seen, CONTEXT_BYTES) : "context_bytes is bytes";
    return "has an entry that this library does not know";
}

static const char *parse(char *text)
{
    unsigned seen = 0;
    char *rest = NULL;
    limits.overcommit_milli = 1000;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const char *wrong = read_line(line, &seen);
        if (wrong != NULL)
            return wrong;
    }
    if ((seen & NEEDED) != NEEDED)
        return "lacks one of version, kernel, compute, context_bytes";
    if (limits.overcommit_milli != 1000 && !limits.best_effort)
        return "overcommits memory, and is not of the class best-effort";
    return limits.gpu_count == 0 ? "names no GPU" : NULL;
}

static const char *read_file(char *text, size_t room)
{
    int file = open(FGPU_LIMITS, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return strerror(errno);
    size_t length = 0;
    ssize_t got;
    while (length < room && (got = read(file, text + length, room - length)) > 0)
        length += (size_t)got;
    const char *wrong = length == room ? "is too long" : got < 0 ? strerror(errno) : NULL;
    close(file);
    if (wrong == NULL && memchr(text, '\0', length) != NULL)
        return "is not text";
    text[wrong == NULL ? length : 0] = '\0';
    return wrong;
}

static void read_limits(void)
{
    char text[8192];
    const char *wrong = read_file(text, sizeof text);
    if (wrong == NULL)
        wrong = parse(text);
    if (wrong == NULL)
        atomic_store(&known, &limits);
    else
        fprintf(stderr, "muster fgpu: the GPU limits of this container, " FGPU_LIMITS ", cannot be used (%s): "
                        "no GPU memory is given; tell the administrator\n", wrong);
}

const struct limits *limits_get(void)
{
    const struct limits *got = atomic_load_explicit(&known, memory_order_acquire);
    if (__builtin_expect(got != NULL, 1))
        return got;
    pthread_once(&once, read_limits);
    return atomic_load(&known);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int limits_gpu_of_uuid_bytes(const struct limits *limits, const unsigned char bytes[16])
{
    for (int gpu = 0; gpu < limits->gpu_count; gpu++) {
        const char *text = strchr(limits->gpus[gpu].uuid, '-');
        int digits = 0;
        for (; *text != '\0'; text++) {
            int value = hex_digit(*text);
            if (value < 0)
                continue;
            unsigned byte = digits < 32 ? bytes[digits / 2] : 0;
            if (value != (int)(digits % 2 == 0 ? byte >> 4 : byte & 15))
                break;
            digits++;
        }
        if (*text == '\0' && digits == 32)
            return gpu;
    }
    return -1;
}

int limits_gpu_of_uuid(const struct limits *limits, const char *uuid)
{
    for (int gpu = 0; gpu < limits->gpu_count; gpu++)
        if (strcmp(limits->gpus[gpu].uuid, uuid) == 0)
            return gpu;
    return -1;
}
