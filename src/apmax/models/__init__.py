"""Models: networks for tables, images and molecules. Each is imported from its own module."""
