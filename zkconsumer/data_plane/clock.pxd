# The clock of time.monotonic(), read exactly where the end of a lease is near. Before that, the kernel's time of its last
# tick is enough: it takes a third of the time to read, and is late by milliseconds.
cdef extern from *:
    """
    #include <time.h>

    /* the time line of CPython's time.monotonic() on these systems */
    static inline double zk_monotonic(void) {
    #if defined(__APPLE__)
        return (double) clock_gettime_nsec_np(CLOCK_UPTIME_RAW) * 1e-9;
    #else
        struct timespec now;
        (void) clock_gettime(CLOCK_MONOTONIC, &now);
        return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
    #endif
    }

    static inline double zk_time_before(double until) {
    #if defined(__linux__) && defined(CLOCK_MONOTONIC_COARSE)
        struct timespec tick;
        if (clock_gettime(CLOCK_MONOTONIC_COARSE, &tick) == 0) {
            double now = (double) tick.tv_sec + (double) tick.tv_nsec * 1e-9;
            if (now + 1.0 < until) return now;  /* a second covers ticks that come late */
        }
    #endif
        return zk_monotonic();
    }
    """
    double monotonic "zk_monotonic"() noexcept nogil
    double time_before "zk_time_before"(double until) noexcept nogil
