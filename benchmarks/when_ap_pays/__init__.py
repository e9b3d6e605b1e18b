"""Controlled study of when training by average precision pays, on problems of known distribution."""
