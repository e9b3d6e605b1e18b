"""What can be learnt from: a kind of data is one entry in the table `KINDS`.

All commands read rows from files; a kind says what a row becomes (its encoder), which networks take that, and which
stages they are trained in if nothing else is asked for.
"""

from apmax.workflows.data_types.base import Encoder, Gathered, Kind, Pictures
from apmax.workflows.data_types.encoded import Encoded, Refused, RowReport, encode
from apmax.workflows.data_types.images import IMAGES
from apmax.workflows.data_types.molecules import MOLECULES
from apmax.workflows.data_types.tables import TABLE

KINDS: dict[str, Kind] = {"table": TABLE, "molecules": MOLECULES, "images": IMAGES}

__all__ = ["KINDS", "Encoded", "Encoder", "Gathered", "Kind", "Pictures", "Refused", "RowReport", "encode"]
