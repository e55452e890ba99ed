"""How the vectors of this repository's own making were recorded: ``python -m tests.vectors.recording``."""
