"""Train models that maximise average precision when positives are rare."""

__version__ = "0.1.0"
