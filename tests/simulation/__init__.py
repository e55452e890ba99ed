"""Whole members in virtual time: production classes, one thread at a time, each switch and fault chosen by a seed.

``__main__`` is the command ``scripts/simulate``. README.md says how to write a scenario.
"""
