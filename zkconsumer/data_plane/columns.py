"""Turns the records of batches of format 2 into the buffers of Arrow columns."""
