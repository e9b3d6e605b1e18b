"""Update rules: the paper's Algorithm 3, groups for saddle-point losses, a proximal term, the theorems' step sizes.

The paper's SGD style is `torch.optim.SGD` as it is.
"""

from apmax.optim.groups import param_groups
from apmax.optim.paper_adam import PaperAdam
from apmax.optim.reference_point import Proximal, proximal
from apmax.optim.theorem import StepSizes, theorem_steps

__all__ = ["PaperAdam", "Proximal", "StepSizes", "param_groups", "proximal", "theorem_steps"]
