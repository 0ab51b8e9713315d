"""Run the campaign: python -m tests.fuzz [number] [seed]."""

import sys

from tests.fuzz.campaign import main

if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
