# The compiled way of checked_slice.py: the same checks, then one call of C.
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy


cdef inline bytes part(const unsigned char[::1] data, Py_ssize_t begin, Py_ssize_t end):
    if not 0 <= begin <= end <= data.shape[0]:
        raise IndexError("bytes beyond the end of the data")
    if begin == end:
        return b""
    return PyBytes_FromStringAndSize(<const char*> &data[0] + begin, end - begin)


cdef inline int copy_part(
    unsigned char[::1] target, Py_ssize_t at, const unsigned char* data, Py_ssize_t size, Py_ssize_t begin, Py_ssize_t end
) except -1:
    if not 0 <= begin <= end <= size or at < 0 or end - begin > target.shape[0] - at:
        raise IndexError("bytes beyond the end of the data")
    if begin < end:
        memcpy(&target[0] + at, data + begin, end - begin)
    return 0
