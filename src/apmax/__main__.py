"""`python -m apmax` is the command `apmax`."""

from apmax.cli.main import main

if __name__ == "__main__":
    main()
