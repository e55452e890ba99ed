"""Measurements, not tests: ``scripts/bench`` runs them. Nothing here is collected by pytest.

A scenario is a module with ``NAME``, ``HELP`` and ``run(plan) -> dict`` (what goes to the JSON file) that prints its
own table; add it to ``__main__._SCENARIOS`` and it is there. Every peer runs in a process of its own; what it costs is
read from outside, in the same way for all.
"""
