# The C types of fetch_response.py.
cdef class ResponseReader:
    cdef readonly bytearray buffer
    cdef object _receive
    cdef memoryview _view
    cdef const unsigned char* _data
    cdef Py_ssize_t _at
    cdef Py_ssize_t _end
    cdef long long _left

    cdef _use(self, memoryview view)
    cdef _fill(self, Py_ssize_t count)
    cdef Py_ssize_t _take(self, Py_ssize_t count) except -1
    cdef bytes _records(self, Py_ssize_t count)
    cdef _check(self, long long count)
    cdef object _partition(self, int version, str topic)
    cdef tuple _aborted(self, Py_ssize_t count)
