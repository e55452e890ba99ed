"""The tests that need no process but their own. The folder mirrors the package."""
