"""A comparison small enough to run anywhere: rare digits and a rare diagnosis, five ways to train, paired seeds."""

from apmax.metrics import Paired, compare
from apmax.workflows.demo.cells import TASKS, Cell, Task
from apmax.workflows.demo.figures import draw
from apmax.workflows.demo.methods import BASE, METHODS

__all__ = ["BASE", "METHODS", "TASKS", "Cell", "Paired", "Task", "compare", "draw"]
