/* Preloaded into a server, it shows the wall clock of a test instead of the machine's.
 *
 * The time, in microseconds since 1970, is the first eight bytes of the file that FROZEN_CLOCK names: mapped, so that
 * the test moves it without a call. CLOCK_MONOTONIC stays real: the server's event loop needs it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shown;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("FROZEN_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED) shown = at;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!shown) {
        if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
        return real(tv, zone);
    }
    int64_t us = *shown;
    if (tv) {
        tv->tv_sec = us / 1000000;
        tv->tv_usec = us % 1000000;
    }
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!shown || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) {
        if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
        return real(clock, ts);
    }
    int64_t us = *shown;
    ts->tv_sec = us / 1000000;
    ts->tv_nsec = (us % 1000000) * 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (at) *at = ts.tv_sec;
    return ts.tv_sec;
}
