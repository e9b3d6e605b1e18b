"""The paper's tables, figures and ablations: a grid of experiments, runs that resume, results in one file."""

from apmax.lazy import lazy_attributes
from apmax.reproduce.grid import ExperimentGrid, GridCell, Item, load_grid
from apmax.reproduce.origin import code_origin
from apmax.reproduce.paper import load_paper_tables
from apmax.reproduce.plan import Search, Trial, plan_searches
from apmax.reproduce.results import Results
from apmax.reproduce.run import Workspace
from apmax.reproduce.workers import PlanState, WorkerError, run_plan

__all__ = [
    "ExperimentGrid",
    "GridCell",
    "Item",
    "PlanState",
    "Results",
    "Search",
    "Trial",
    "WorkerError",
    "Workspace",
    "code_origin",
    "load_grid",
    "load_paper_tables",
    "pages",
    "plan_searches",
    "run_plan",
]

__getattr__, __dir__ = lazy_attributes(__name__, __all__)
