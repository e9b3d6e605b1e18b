"""The build of the documentation site: `python -m tools.site`, or `make docs`."""
