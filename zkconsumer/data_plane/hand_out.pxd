cdef class HandOutMarks:
    cdef public long long finished_to
    cdef public long long held_until
    cdef public bint halted


cdef class LeaseEnd:
    cdef public double until


cdef class MessageAndMetadata:
    cdef public object record
    cdef public tuple place


cdef class HandOut:
    cdef readonly object generator
    cdef public bint turned
    cdef public bint owes
    cdef bint begun
    cdef bint over
