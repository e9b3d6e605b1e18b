"""A training run as a value: frozen dataclasses that are checked when built, read from TOML and written to it.

>>> run = loads('''
... seed = 7
... [[stage]]
... loss = { ap = 1.0, ce = 1.0 }
... epochs = 5
... sampler = { name = "positive", batch_size = 128, num_pos = 16 }
... ''')
>>> run.stages[0].loss, run.stages[0].optimizer.lr
({'ap': 1.0, 'ce': 1.0}, 0.001)
>>> loads("sed = 7")
Traceback (most recent call last):
...
ValueError: unknown key 'sed' in the run (did you mean 'seed'?)
"""

from apmax.train.config.parts import Checkpoints, Objective, Optimizer, Sampler, Schedule
from apmax.train.config.recipes import RECIPES
from apmax.train.config.run import Run
from apmax.train.config.stages import ExactHead, Stage
from apmax.train.config.toml import dumps, load, loads, read_run

__all__ = [
    "RECIPES",
    "Checkpoints",
    "ExactHead",
    "Objective",
    "Optimizer",
    "Run",
    "Sampler",
    "Schedule",
    "Stage",
    "dumps",
    "load",
    "loads",
    "read_run",
]
