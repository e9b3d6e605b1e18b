"""What was strange about rows that were encoded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class EncodingReport:
    """Collects, over any number of chunks, what the training rows had not prepared the encoder for.

    Args:
        rows: Rows seen.
        absent: Columns that are not there at all.
        unseen: For each column of categories the values that training did not have, with how often they came.
        unreadable: For each column of numbers or dates how many values were neither such nor missing.
    """

    rows: int = 0
    absent: list[str] = field(default_factory=list)
    unseen: dict[str, Counter[str]] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return one readable line for each thing found.

        >>> report = EncodingReport(rows=10, absent=["age"], unseen={"city": Counter(Rome=2)})
        >>> for line in report.lines():
        ...     print(line)
        column 'age' is missing: every row is scored as if its value were unknown
        column 'city': 2 of 10 rows have a value that training had not: 'Rome'
        """
        lines = [f"column {n!r} is missing: every row is scored as if its value were unknown" for n in self.absent]
        for name, counts in self.unseen.items():
            shown = ", ".join(repr(value) for value, _ in counts.most_common(3)) + (", …" if len(counts) > 3 else "")
            rows = sum(counts.values())
            lines.append(f"column {name!r}: {rows} of {self.rows} rows have a value that training had not: {shown}")
        for name, count in self.unreadable.items():
            lines.append(f"column {name!r}: {count} of {self.rows} values could not be read and count as missing")
        return lines

    def add_unseen(self, name: str, values: dict[str, int]) -> None:
        """Count values of a category that training did not have; beyond a thousand different ones as "…"."""
        if not values:
            return
        counts = self.unseen.setdefault(name, Counter())
        for value, count in values.items():
            counts[value if value in counts or len(counts) < 1000 else "…"] += count

    def add_unreadable(self, name: str, count: int) -> None:
        """Count values that could not be read."""
        if count:
            self.unreadable[name] = self.unreadable.get(name, 0) + count
