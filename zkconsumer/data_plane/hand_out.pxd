cdef class HandOutMarks:
    cdef public object consumed
    cdef public object held_until
    cdef public bint halted


cdef class LeaseEnd:
    cdef public double until


cdef class MessageAndMetadata:
    cdef public object record
    cdef public tuple place


cdef class HandOut:
    cdef readonly object generator
    cdef public bint turned
    cdef bint begun
    cdef bint over
