"""A comparison small enough to run anywhere: rare digits and a rare diagnosis, five ways to train, paired seeds."""

from apmax.demo.cells import TASKS, Cell, Task
from apmax.demo.figures import draw
from apmax.demo.methods import BASE, METHODS
from apmax.metrics import Paired, compare

__all__ = ["BASE", "METHODS", "TASKS", "Cell", "Paired", "Task", "compare", "draw"]
