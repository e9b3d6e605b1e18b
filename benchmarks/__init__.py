"""What the project measures: speed and memory, coverage of intervals, committees, and the paper's claim."""
