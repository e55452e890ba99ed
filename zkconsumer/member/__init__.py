"""Membership, ownership, and the one thread that owns the group's state."""
