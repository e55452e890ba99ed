"""Offsets in the user's database, on SQLite and PostgreSQL; ``python -m tests.databases`` is the campaign of kills."""
