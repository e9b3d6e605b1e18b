"""The paper's tables, figures and ablations: grids as data, runs that resume, results in one file."""

from apmax.experiments.grid import Grid, Item, grid
from apmax.experiments.plan import Search, searches
from apmax.experiments.results import Results
from apmax.experiments.runner import State, WorkerError, origin, run_plan
from apmax.experiments.running import Place

__all__ = [
    "Grid",
    "Item",
    "Place",
    "Results",
    "Search",
    "State",
    "WorkerError",
    "grid",
    "origin",
    "run_plan",
    "searches",
]
