"""Committees of images against other methods, on public sets."""
