"""Tests that use a Docker engine: docker-compose.yml as a user starts it, and ZooKeeper from testcontainers."""
