"""`python -m dtypeguard`."""

import sys

from ._cli.main import console

if __name__ == "__main__":
    sys.exit(console())
