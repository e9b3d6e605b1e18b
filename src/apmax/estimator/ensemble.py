"""`APEnsembleClassifier`: a committee of models with scikit-learn's contract."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from joblib import effective_n_jobs  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn.model_selection import check_cv  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]

from apmax import validation
from apmax.committee import ArrayFeatures, TableFeatures, TrainingRows, find_members, fit_committee
from apmax.committee.features import ENCODED_ROWS, FrameFeatures, arrow_rows, take_frame
from apmax.estimator.base import RankingClassifier

_Array = NDArray[np.float64]


class APEnsembleClassifier(RankingClassifier):
    """A committee of different models, weighted by their cross-fitted scores.

    Every row gets from every member a score by a model that was not fitted to it (cross-fitting). These scores decide
    how the members are weighted; a weak member gets weight 0. To score new rows, the models of all folds are averaged.

    Args:
        members: Names in `apmax.committee.MEMBERS` and pairs (name, scikit-learn estimator); None for all
            of effort "standard". An estimator of your own reads rows as you give them: of a data frame with its
            columns by name.
        cv: The largest number of folds, fewer where there are fewer positives (or groups that hold positives); or a
            splitter or splits of scikit-learn; None for its five stratified folds.
        pos_label: The class whose average precision is maximised; None for the last of `classes_`.
        n_jobs: Simultaneous fits, in threads (networks in processes from 3 on); None for 1, -1 for the number of cores.
        random_state: Seed of the folds and members.

    Attributes:
        classes_: The two classes, sorted.
        committee_: The fitted `apmax.committee.Committee`.
        leaderboard_: Its leaderboard: cross-fitted average precision of each member with interval, weight and time.
        weights_: The weight of each member in the blend, by name.
        n_features_in_, feature_names_in_: As in all of scikit-learn.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = (X[:, 0] + 0.5 * rng.normal(size=200) > 1).astype(int)
    >>> model = APEnsembleClassifier(["linear", "trees"], random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape, sorted(model.weights_)
    ((200, 2), ['linear', 'trees'])
    """

    def __init__(
        self,
        members: Any = None,
        *,
        cv: Any = 5,
        pos_label: Any = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.members = members
        self.cv = cv
        self.pos_label = pos_label
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> APEnsembleClassifier:
        """Fit the committee.

        Args:
            X: (n, d) numbers, or a data frame that may have columns of texts, categories and dates. Of such a frame
                ids, free text and columns of other types (durations, intervals, lists, …) are left out with a warning;
                estimators of your own get them.
            y: (n,) labels of two classes.
            sample_weight: (n,) non-negative; a row of weight 0 is left out.
            groups: (n,) rows of one group stay together in every split.

        Raises:
            ValueError: Wrong settings, not two classes, fewer than two rows of a class, or groups of other rows.
        """
        return self._fit_as_copy(X, y, sample_weight, groups)

    def _fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> None:
        if isinstance(self.cv, numbers.Integral):
            validation.whole("cv", self.cv, 2)
        members, n_jobs = find_members(self.members), effective_n_jobs(self.n_jobs)
        self._mixed = _has_mixed_columns(X)
        # A data frame is converted once, unless an estimator of the user's needs the frame itself.
        self._reads_frame = _is_frame(X) and any(member.raw for member in members.values())
        frame = X
        if self._mixed:
            _, y = validate_data(self, np.zeros((len(X), 1)), y)
            self.n_features_in_, self.feature_names_in_ = X.shape[1], np.asarray(X.columns, dtype=object)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, self._sign, labels, weight = self._binary_labels(y, sample_weight)
        groups = None if groups is None else validation.group_array(groups, len(y))
        kept = np.flatnonzero(weight > 0)
        columns: ArrayFeatures | TableFeatures
        if self._mixed:
            from apmax.data.tables import TableEncoder  # needs pyarrow, which tables of numbers do not

            table = arrow_rows(X).take(kept)
            self._encoder = TableEncoder.fit(table)
            if not all(member.raw for member in members.values()):
                _warn_of_columns_left_out(self._encoder.left_out)
            columns = TableFeatures(table, self._encoder)
        else:
            columns = ArrayFeatures(X[kept])
        rows = TrainingRows(
            FrameFeatures(take_frame(frame, kept), columns) if self._reads_frame else columns,
            labels[kept],
            weight[kept],
            None if groups is None else groups[kept],
        )
        folds = int(self.cv) if isinstance(self.cv, numbers.Integral) else _given_folds(self.cv, X, y, groups, kept)
        committee = fit_committee(rows, members, folds=folds, seed=self._seed(), n_jobs=n_jobs)
        self.committee_, self.leaderboard_ = committee, committee.leaderboard
        self.weights_ = dict(zip(members, committee.blend.weights.tolist(), strict=True))

    def decision_function(self, X: Any) -> _Array:
        """Return (n,) calibrated log-odds of `classes_[1]`; their order is the ranking.

        Values of a data frame that cannot be read as the numbers or dates of training count as missing, with a warning.

        Raises:
            ValueError: A data frame has other columns than in training, or in another order.
        """
        check_is_fitted(self, "committee_")
        if self._mixed:
            _check_columns(X, self.feature_names_in_.tolist())
            self._warn_of_unreadable(X)
            rows = X if self._reads_frame else arrow_rows(X)
        else:
            array = validate_data(self, X, dtype=np.float64, reset=False)
            rows = X if self._reads_frame and _is_frame(X) else array
        return np.asarray(self._sign * self.committee_.log_odds(self.committee_.score(rows)))

    def _warn_of_unreadable(self, X: Any) -> None:
        from apmax.data.tables import EncodingReport

        table, report = arrow_rows(X), EncodingReport()
        for start in range(0, table.num_rows, ENCODED_ROWS):
            self._encoder.encode(table.slice(start, ENCODED_ROWS), report)
        # Not of new categories, which are to be expected.
        report.unseen.clear()
        for line in report.lines():
            warnings.warn(line, stacklevel=3)


def _warn_of_columns_left_out(left_out: Mapping[str, str]) -> None:
    """Warn of columns that no member of ours reads; not of those that say nothing in any row."""
    from apmax.data.tables.inference import ALL_EQUAL, ALL_MISSING

    found = [f"{name!r} ({why})" for name, why in left_out.items() if why not in (ALL_EQUAL, ALL_MISSING)]
    if found:
        warnings.warn(f"columns are left out: {'; '.join(found)}", stacklevel=5)


def _given_folds(cv: Any, X: Any, y: Any, groups: Any, kept: NDArray[np.int64]) -> list[tuple[Any, Any]]:
    """Return the folds of a scikit-learn splitter as positions among the rows that are kept."""
    position = np.full(len(y), -1)
    position[kept] = np.arange(len(kept))
    splitter = check_cv(cv, y, classifier=True)
    folds = [(position[train], position[test]) for train, test in splitter.split(X, y, groups)]
    return [(train[train >= 0], test[test >= 0]) for train, test in folds]


def _is_frame(X: Any) -> bool:
    """Return whether X is a data frame of pandas or polars."""
    return hasattr(X, "dtypes") and hasattr(X, "columns")


def _has_mixed_columns(X: Any) -> bool:
    """Return whether X is a data frame with columns other than numbers."""
    return _is_frame(X) and not all(map(_is_number, X.dtypes))


def _is_number(dtype: Any) -> bool:
    """Return whether a column of this type, of pandas or polars, holds numbers or truth values."""
    kind = getattr(dtype, "kind", None)
    return bool(dtype.is_numeric() or str(dtype) == "Boolean") if kind is None else kind in "iufb"


def _check_columns(X: Any, names: Sequence[Any]) -> None:
    """Raise unless X is a data frame with these columns in this order, which scikit-learn asks for, too."""
    if not _is_frame(X):
        raise ValueError("X must be a data frame with the columns of training, got an array")
    from apmax.data.reading import list_names  # needs pyarrow, which tables of numbers do not

    given = list(X.columns)
    if given == names:
        return
    differences = {
        "missing": [name for name in names if name not in given],
        "not in training": [name for name in given if name not in names],
    }
    found = [f"{what}: {list_names(map(str, each))}" for what, each in differences.items() if each]
    found = found or ["they are in another order: pass X[list(model.feature_names_in_)]"]
    raise ValueError(f"X must have the columns of training in the same order; {'; '.join(found)}")
