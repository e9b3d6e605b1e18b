"""Speed and memory, as ratios measured in one run; `python -m benchmarks` prints all of them."""
