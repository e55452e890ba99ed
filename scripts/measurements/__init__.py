"""The programs behind ``scripts/bench`` and ``scripts/scale``. They print figures, which no test checks.

The folder ``figures`` has the last figures.
"""
