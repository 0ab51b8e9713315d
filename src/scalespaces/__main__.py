"""``python -m scalespaces`` is the command ``scalespaces``."""

import sys

from scalespaces.cli import main

if __name__ == "__main__":
    sys.exit(main())
