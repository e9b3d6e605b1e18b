"""Data sets and what wraps them."""
