"""Committees against other methods, on tables, molecules and images: splits, methods, a resumable runner, reports."""
