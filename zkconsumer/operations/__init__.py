"""Looking after groups: the group snapshot, what is derived from it, and writes to a group from outside."""
