"""Update rules: the paper's Algorithm 3, groups for saddle-point losses, a proximal term, the theorems' step sizes.

The paper's SGD style is plain `torch.optim.SGD`.
"""

from apmax.optim.groups import param_groups
from apmax.optim.paper_adam import PaperAdam, StepSizes, theorem_steps
from apmax.optim.proximal_term import Proximal, proximal

__all__ = ["PaperAdam", "Proximal", "StepSizes", "param_groups", "proximal", "theorem_steps"]
