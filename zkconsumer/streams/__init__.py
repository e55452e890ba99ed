"""Hands fetched messages to the application: bounded queues of chunks, and the streams that read them."""
