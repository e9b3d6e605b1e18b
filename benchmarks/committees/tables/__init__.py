"""Committees of tables against other methods, and the studies that chose their settings."""
