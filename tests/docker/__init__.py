"""Docker tests: docker-compose.yml as a user starts it, and ZooKeeper from testcontainers."""
