"""Controlled study of when training by average precision pays: problems of known distribution, many methods, one page."""
