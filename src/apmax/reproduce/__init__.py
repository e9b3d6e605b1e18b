"""The paper's tables, figures and ablations: grids as data, runs that resume, results in one file."""

from apmax.reproduce.grid import Grid, Item, grid
from apmax.reproduce.plan import Search, searches
from apmax.reproduce.results import Results
from apmax.reproduce.runner import State, WorkerError, origin, run_plan
from apmax.reproduce.running import Place

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
