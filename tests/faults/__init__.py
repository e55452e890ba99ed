"""The fault tests: members in their own processes log all their actions, and a checker reads the logs.

``scripts/faults`` runs every row of the fault matrix. pytest runs a sample of the rows. ``scripts/simulate`` has random
faults, in virtual time.
"""
