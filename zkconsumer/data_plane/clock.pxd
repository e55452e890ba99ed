# The clock of time.monotonic(), read by the same function of CPython. So a lease means the same to both.
cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    static inline double zk_monotonic(void) {
        PyTime_t now;
        (void) PyTime_MonotonicRaw(&now);
        return (double) now * 1e-9;
    }
    #else
    static inline double zk_monotonic(void) { return (double) _PyTime_GetMonotonicClock() * 1e-9; }
    #endif
    """
    double monotonic "zk_monotonic"() noexcept nogil
