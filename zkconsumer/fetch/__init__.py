"""From the brokers into the streams: the leader finder and the fetchers."""
