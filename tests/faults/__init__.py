"""The fault tests: members in their own processes log all their actions, and a checker reads the logs.

``scripts/faults`` runs every row of the fault matrix. ``scripts/soak`` injects random faults for a long time. pytest
runs a sample of the rows.
"""
