"""Fetches chunks from the brokers into the streams: the leader finder and the fetchers."""
