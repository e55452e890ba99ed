"""The programs behind ``scripts/bench`` and ``scripts/scale``. They print figures, which no test checks.

zkconsumer/docs/measurements.md has the last figures.
"""
