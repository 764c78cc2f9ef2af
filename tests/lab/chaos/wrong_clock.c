/* A clock that is wrong by as many seconds as a file says: for the processes that load this library, and no other.

   Hosts and control node of the lab share their machine's clock, which is nobody's to change. Time that only passes
   (CLOCK_MONOTONIC) stays as it is, as it does where a clock is set. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *wrong_by_s;

__attribute__((constructor)) static void find_out(void) {
  const char *path = getenv("WRONG_CLOCK");
  const int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof *wrong_by_s, PROT_READ, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) wrong_by_s = mapped;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && wrong_by_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += (time_t)*wrong_by_s;
  return failed ? -1 : 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  if (now != NULL) *now = exact.tv_sec;
  return exact.tv_sec;
}
