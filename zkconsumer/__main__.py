"""``python -m zkconsumer``: the same as the console script ``zkconsumer``."""

import sys

from zkconsumer.cli import main

if __name__ == "__main__":
    sys.exit(main())
