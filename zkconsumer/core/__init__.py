"""Decisions: pure functions and values without threads, clock, input, output or logging."""
