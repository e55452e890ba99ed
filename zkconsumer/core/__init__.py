"""What decides: pure functions and values; no threads, no clock, no I/O, no logging."""
