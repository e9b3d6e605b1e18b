"""Example rows of a report: the best-ranked rows and the positives that were missed, with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras
from apmax.data import parsing
from apmax.report.content import Example, ExampleTable
from apmax.report.pictures import atom_effects, draw_molecule, draw_thumbnail
from apmax.workflows import SavedModel, ScoredRows
from apmax.workflows.data_types.rows import target_columns

TOP_EXAMPLES, MISSED_EXAMPLES = 24, 12
MOST_CELLS, LONGEST_CELL = 8, 60
_ATOMS_NOTE = (
    "An atom is blue where the score falls when it is masked (replaced by an atom without element), orange where it "
    "rises; each molecule has its own scale."
)


def example_tables(model: SavedModel, part: ScoredRows, number: int, first: Sequence[str]) -> tuple[ExampleTable, ...]:
    """Return the best-ranked rows, and the positives of the lowest scores that a perfect ranking has higher."""
    order = np.argsort(-part.scores, kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    positives = np.flatnonzero(part.labels == 1)
    missed = positives[places[positives] >= len(positives)]
    missed = missed[np.argsort(-places[missed])][:MISSED_EXAMPLES]
    tables = []
    for title, rows in (("Top-ranked rows", order[:TOP_EXAMPLES]), ("Worst-missed positives", missed)):
        if not len(rows):
            continue
        table = part.table.take(rows)
        columns = _shown_columns(model, table, first)
        cells = [_cell_texts(model, table, name) for name in columns]
        pictures, note = _draw_rows(model, table, number)
        examples = [
            Example(
                rank=int(places[row]) + 1,
                score=float(part.scores[row]),
                positive=bool(part.labels[row] == 1),
                cells=(str(int(part.rows[row])), *(cell[k] for cell in cells)),
                picture=pictures[k] if pictures else "",
            )
            for k, row in enumerate(rows)
        ]
        tables.append(ExampleTable(title, part.part, ("row", *columns), tuple(examples), note))
    return tuple(tables)


def _shown_columns(model: SavedModel, table: Any, first: Sequence[str]) -> list[str]:
    """Return the columns of example rows: those that drive the ranking or are read, then those that identify a row."""
    read = [name for name in (first or model.encoder.names) if name in table.column_names]
    known = {*read, *model.encoder.names, *model.targets.names}
    rest = [name for name in table.column_names if name not in known]
    return [*rest[:2], *read[: MOST_CELLS - min(2, len(rest))]] if first else [*read, *rest[:3]]


def _cell_texts(model: SavedModel, table: Any, column: str) -> list[str]:
    """Return the texts of a column as they are shown: of the path of an image the end, of other texts the beginning."""
    texts = parsing.cells(table.column(column))
    if model.job.data.kind == "images" and column in model.encoder.names:
        return ["/".join(Path(text).parts[-2:])[-LONGEST_CELL:] for text in texts]
    return [text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…" for text in texts]


def _draw_rows(model: SavedModel, table: Any, number: int) -> tuple[list[str], str]:
    """Return a picture of each row and how to read it; none of rows of numbers."""
    kind = model.job.data.kind
    if kind == "molecules":
        column = model.encoder.names[0]
        smiles = parsing.cells(table.column(column))
        pa = extras.load("pyarrow", "tables")

        def score(texts: list[str]) -> npt.NDArray[Any]:
            return target_columns(model.score_table(pa.table({column: texts})))[:, number]

        effects = atom_effects(smiles, score)
        return [draw_molecule(text, own) for text, own in zip(smiles, effects, strict=True)], _ATOMS_NOTE
    if kind == "images":
        encoder: Any = model.encoder
        return [draw_thumbnail(file, fit=encoder.fit) for file in encoder.paths.files(table)], ""
    return [], ""
