"""The interrupt sweep: an exception at every bytecode boundary of an operation, and signals at random moments.

``python -m tests.interrupts`` sweeps everything and prints figures; the tests of this folder run a sample of it.
"""
