"""Adapters to other frameworks, imported by no other package of apmax."""
