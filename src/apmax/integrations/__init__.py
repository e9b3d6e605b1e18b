"""Thin adapters to other frameworks; nothing else in the package knows of them."""
