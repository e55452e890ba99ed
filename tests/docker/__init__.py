"""Docker tests: docker-compose.yml as a user starts it."""
