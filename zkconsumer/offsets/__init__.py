"""Stores of offsets, start offsets, and the committer that writes progress."""
