"""Content of the report on images."""

from __future__ import annotations

from benchmarks.committees.images.problems import PROBLEMS
from benchmarks.committees.problem_report import ProblemPage

IMAGE_PAGE = ProblemPage(
    "images",
    PROBLEMS,
    introduction="""\
`cifar10` and `ham10000_df` have one split and one seed; `ham10000_df_resplit` has the images of `ham10000_df` in five
other splits. The settings of committees of images were chosen on 8×8 digits.""",
    resampling="The images of a lesion are drawn together, and all splits and methods share a resample.",
)
