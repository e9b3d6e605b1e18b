"""apmax beside LibAUC, the library of the paper's authors, in an environment that has both (results/libauc/README.md)."""
