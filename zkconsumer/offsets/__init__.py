"""Where offsets are kept and when they are written."""
