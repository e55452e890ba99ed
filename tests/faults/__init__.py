"""The proof by faults: members in processes of their own, all they do written down, and a checker that reads it.

``scripts/faults`` runs every row of the matrix, ``scripts/soak`` churns; pytest runs the rows that fit into every
change.
"""
