# The C types of columns.py.
cdef long long _LARGEST, _LARGEST_MS


cdef class RowScanner:
    cdef long long[::1] _offsets
    cdef long long[::1] _timestamps
    cdef int[::1] _key_ends
    cdef int[::1] _value_ends
    cdef unsigned char[::1] _keys
    cdef unsigned char[::1] _values
    cdef unsigned char[::1] _valid_keys
    cdef unsigned char[::1] _valid_values
    cdef unsigned char[::1] _valid_timestamps
    cdef bint _with_keys
    cdef bint _with_values
    cdef Py_ssize_t _rows
    cdef Py_ssize_t _key_bytes
    cdef Py_ssize_t _value_bytes
    cdef Py_ssize_t _null_keys
    cdef Py_ssize_t _null_values
    cdef Py_ssize_t _null_timestamps
    cdef const unsigned char* _data
    cdef Py_ssize_t _size
    cdef Py_ssize_t _at
    cdef long long _base
    cdef long long _span
    cdef long long _previous
    cdef long long _stamp
    cdef long long _first
    cdef long long _stop
    cdef bint _appended

    cdef inline bint _record(self) except -1
    cdef inline bint _row(self, Py_ssize_t stop, long long offset, long long stamp) except -1
    cdef inline bint _fields(self, Py_ssize_t stop, bint wanted) except -1
    cdef inline int _key(self, Py_ssize_t at, long long size) except -1
    cdef inline int _value(self, Py_ssize_t at, long long size) except -1
    cdef bint _headers_end(self, Py_ssize_t at, Py_ssize_t stop) except -1
