"""The demonstration, which is the command `apmax demo`: python examples/demo.py [--quick] [--out DIR]."""

import sys

from apmax.cli.main import main

if __name__ == "__main__":
    main(["demo", *sys.argv[1:]])
