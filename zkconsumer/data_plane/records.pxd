# The C types of records.py.
from libc.stdint cimport int64_t


cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)


cdef str _SKIPPING


cdef inline const unsigned char* start_of(memoryview view, Py_ssize_t parts) except NULL:
    cdef Py_buffer* buffer = PyMemoryView_GET_BUFFER(view)
    if buffer.itemsize != 1 or buffer.ndim != 1 or buffer.strides[0] != 1:
        raise BufferError(_SKIPPING)
    return <const unsigned char*> buffer.buf


cdef Py_ssize_t _BATCH_HEAD, _SMALLEST
cdef long long _LARGEST


cdef class Record:
    cdef readonly long long offset
    cdef readonly long long timestamp
    cdef readonly int timestamp_type
    cdef readonly bytes key
    cdef readonly bytes value
    cdef list _headers


cdef class RecordReader:
    cdef memoryview _view
    cdef const unsigned char* _data
    cdef Py_ssize_t _at
    cdef Py_ssize_t _end
    cdef long long _base
    cdef long long _span
    cdef long long _first
    cdef long long _unread
    cdef long long _first_stamp
    cdef long long _stamp
    cdef int _kind
    cdef object _failed
    cdef readonly Py_ssize_t left
    cdef readonly object failure

    cdef Record _record(self)
    cdef inline Py_ssize_t _content(self, Record record, Py_ssize_t at, Py_ssize_t stop) except -1
    cdef list _headers(self, Py_ssize_t at, Py_ssize_t stop)
    # int64_t and not long long: Cython 3.3 writes an exception value of that type as no C compiler reads it
    cdef inline int64_t _number(self, Py_ssize_t at, Py_ssize_t stop) except? -1000003
    cdef int64_t _any_number(self, Py_ssize_t at, Py_ssize_t stop) except? -1000003
    cdef int _check_end(self) except -1
    cdef object _malformed(self, str reason)
    cdef int64_t _shifted(self, long long delta) noexcept
