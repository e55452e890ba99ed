# The clock of time.monotonic(), read by the same functions of CPython. So a lease means the same to both.
cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    static inline double zk_monotonic(void) {
        PyTime_t now;
        (void) PyTime_MonotonicRaw(&now);
        return PyTime_AsSecondsDouble(now);
    }
    #else
    static inline double zk_monotonic(void) { return _PyTime_AsSecondsDouble(_PyTime_GetMonotonicClock()); }
    #endif
    """
    double monotonic "zk_monotonic"() noexcept nogil
