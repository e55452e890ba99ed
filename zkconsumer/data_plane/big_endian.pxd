# The compiled way of big_endian.py: the same through a pointer, whose end the caller checks.
from cpython.bytes cimport PyBytes_FromStringAndSize


cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)
    str PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)


cdef inline const unsigned char* start_of_view(memoryview view) except NULL:
    cdef Py_buffer* buffer = PyMemoryView_GET_BUFFER(view)
    if buffer.itemsize != 1 or buffer.ndim != 1 or buffer.strides[0] != 1:
        raise BufferError("the bytes do not lie one behind the other")
    if buffer.len == 0:
        return b"\0"  # nothing of it is read, and the address may be none
    return <const unsigned char*> buffer.buf


cdef inline int int16_at(const unsigned char* data, Py_ssize_t at) noexcept:
    return <short> (data[at] << 8 | data[at + 1])


cdef inline int int32_at(const unsigned char* data, Py_ssize_t at) noexcept:
    return <int> (<unsigned int> data[at] << 24 | <unsigned int> data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3])


cdef inline long long int64_at(const unsigned char* data, Py_ssize_t at) noexcept:
    cdef unsigned long long high = <unsigned int> int32_at(data, at)
    return <long long> (high << 32 | <unsigned int> int32_at(data, at + 4))


cdef inline str text_at(const unsigned char* data, Py_ssize_t at, Py_ssize_t size):
    return PyUnicode_DecodeUTF8(<const char*> data + at, size, NULL)


cdef inline bytes bytes_at(const unsigned char* data, Py_ssize_t at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*> data + at, size)
