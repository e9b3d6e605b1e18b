"""Speed and memory as ratios of one run; `python -m benchmarks` prints them all."""
