"""Commands for work on the package. They are shell scripts, except for ``packaging`` and ``measurements``."""
