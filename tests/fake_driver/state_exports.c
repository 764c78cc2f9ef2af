/* Memory behind descriptors: who has it holds a lock on its byte of the state's file. */
#define _GNU_SOURCE
#include "state_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST_EXPORT = 1 << 20 };
static unsigned held[MAX_EXPORTS]; /* by this process */

static bool export_is_locked(int number)
{
    return held[number] || state_byte_is_locked(FIRST_EXPORT + number);
}

void exports_reap(struct state *state)
{
    for (int number = 0; number < MAX_EXPORTS; number++)
        if (state->exports[number].used && !export_is_locked(number))
            state->exports[number].used = 0;
}

void exports_after_fork(void)
{
    memset(held, 0, sizeof held);
}

static void hold(int number)
{
    if (held[number]++ == 0)
        state_lock_byte(F_OFD_SETLK, F_RDLCK, FIRST_EXPORT + number);
}

int state_export(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    int number = -1;
    state_lock();
    state_reap(state);
    for (int i = 0; i < MAX_EXPORTS && number < 0; i++)
        if (!state->exports[i].used)
            number = i;
    if (number >= 0) {
        state->exports[number] = (struct exported){.device = device, .bytes = bytes};
        hold(number);
        process->used_bytes[device] -= bytes;
        state->exports[number].used = 1;
    }
    state_unlock();
    return number;
}

int state_export_open(int number)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = FIRST_EXPORT + number, .l_len = 1};
    int file = open(FAKE_GPU_STATE, O_RDWR | O_CLOEXEC);
    if (file >= 0 && fcntl(file, F_OFD_SETLK, &lock) == 0 && lseek(file, number, SEEK_SET) == number)
        return file;
    close(file);
    return -1;
}

bool state_import_number(struct state *state, int number)
{
    state_lock();
    bool there = number >= 0 && number < MAX_EXPORTS && state->exports[number].used;
    if (there)
        hold(number);
    state_unlock();
    return there;
}

int state_import(struct state *state, int file)
{
    struct stat ours, theirs;
    /* System calls, since newer C libraries bind fstat() to a version that older ones lack. */
    if (syscall(SYS_fstat, state_descriptor, &ours) != 0 || syscall(SYS_fstat, file, &theirs) != 0 ||
        ours.st_ino != theirs.st_ino)
        return -1;
    int number = (int)lseek(file, 0, SEEK_CUR);
    return state_import_number(state, number) ? number : -1;
}

void state_export_drop(int number)
{
    if (--held[number] == 0)
        state_lock_byte(F_OFD_SETLK, F_UNLCK, FIRST_EXPORT + number);
}
