"""The memory of `APLoss`: for every training positive the running estimate u of its g."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apmax.exact.search import common_rows, edges_below


class Memory(nn.Module):
    """A table (2, n₊) of estimates, found by training row; negatives have no entry.

    Args:
        labels: The training labels, (n,) or (n, tasks).

    Raises:
        ValueError: There is no positive.
    """

    _rows: Tensor
    _values: Tensor
    _spare: Tensor
    _limit: Tensor

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.num_rows = labels.shape[0]
        self.tasks = labels.shape[1] if labels.ndim == 2 else None
        rows = (labels if self.tasks is None else labels.mT.flatten()).eq(1).nonzero().squeeze(-1)
        if rows.numel() == 0:
            raise ValueError("labels must hold at least one positive (1), got none")
        # Both tables end in a spare slot that belongs to no row: it receives values that must not be stored, so that
        # neither finding nor writing needs a data-dependent shape.
        end = rows.new_full((1,), torch.iinfo(rows.dtype).max)
        # Not persistent: rows and values are saved by hand, so that loading can compare the rows.
        self.register_buffer("_rows", torch.cat([rows, end]), persistent=False)
        self.register_buffer("_values", torch.zeros(2, rows.numel() + 1, device=rows.device), persistent=False)
        # Constants as tensors: an operation with a Python number takes twice as long.
        self.register_buffer("_spare", rows.new_full((), rows.numel()), persistent=False)
        self.register_buffer("_limit", torch.full((), torch.inf, device=rows.device), persistent=False)

    @property
    def u(self) -> Tensor:
        """The estimates of (g¹, g²), (n₊, 2), in the order of `rows`; 0 where never visited."""
        return self._values[:, :-1].mT

    @property
    def rows(self) -> Tensor:
        """The training rows of the positives, (n₊,); row r of task t has the number t·n + r."""
        return self._rows[:-1]

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots of training rows, (k,) or (tasks, k), and the keys found there if they are positive."""
        if self.tasks is not None:
            rows = rows + torch.arange(self.tasks, device=rows.device).unsqueeze(-1) * self.num_rows
        return edges_below(self._rows, rows), rows

    def holds(self, slots: Tensor, key: Tensor) -> Tensor:
        """Return whether the slots and keys that `find` returned are those of positives."""
        return self._rows.take(slots) == key

    def positives_among(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the positions of the positives among rows (B,) of one task, and their slots: on the host only.

        None if a row is repeated or is not in the training set.
        """
        return common_rows(self._rows.numpy()[:-1], rows, self.num_rows)

    def read(self, slots: Tensor) -> Tensor:
        """Return u at these slots, (2, ...)."""
        return self._values.index_select(1, slots) if slots.ndim == 1 else self._values[:, slots]

    def write(self, slots: Tensor, u: Tensor, storable: Tensor | None = None) -> None:
        """Store u, (2, ...), at these slots where it is finite and `storable`; those must differ from each other."""
        values = self._values
        u = u.to(values.dtype)
        # u² contains u¹; NaN compares as false. After the cast, which may overflow.
        finite = u[1] < self._limit
        target = torch.where(finite if storable is None else finite & storable, slots, self._spare)
        values.index_copy_(1, target.flatten(), u.flatten(1))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "u"] = self.u.contiguous()
        destination[prefix + "rows"] = self.rows

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load u, with an error if the saved loss was built from other positives."""
        u, rows = state_dict.get(prefix + "u"), state_dict.get(prefix + "rows")
        known = (prefix + "u", prefix + "rows")
        own = {key: value for key, value in state_dict.items() if key not in known}
        super()._load_from_state_dict(own, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if u is None or rows is None:
            missing_keys.extend(key for key in known if key not in state_dict)
        elif rows.shape != self.rows.shape or not torch.equal(rows.to(self.rows.device), self.rows):
            saved, here = rows.numel(), self.rows.numel()
            differ = f"this one {here}" if saved != here else "this one as many in other rows"
            error_msgs.append(
                f"{prefix}rows: the saved loss has {saved} training positives, {differ}; build it from the same labels"
            )
        else:
            self.u.copy_(u)
