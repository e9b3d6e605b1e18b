"""apmax beside LibAUC, by the authors of the paper, in an environment that has both (results/libauc/README.md)."""
