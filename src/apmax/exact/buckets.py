"""Pair sums of a piecewise polynomial surrogate in O((n + k) log k): one binary search for each example.

Every anchor a has knots a + x where the polynomial of ℓ(s - a) changes. All knots, sorted, cut the line into buckets;
inside a bucket every anchor sees one polynomial. So three moments of a bucket (how many examples, the sums of their
distances d from its left edge and of d²) say all that any anchor needs of them, and the gradient of an example is
`constant[bucket] + slope[bucket]·d`. Moments add up over chunks and over processes.

Accuracy. A piece without end (hinges) is accumulated from the top by a recurrence whose terms are all non-negative.
A bounded piece is a difference of prefix sums; these are taken relative to cells twice as wide as the piece, so that
neither an offset of all scores nor one far outlier costs digits. Everything is relative to the median anchor; an
anchor at a distance D from it sees its own neighbourhood to within the rounding of D, 1e-16·D.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from apmax.exact.search import edges_at_or_below
from apmax.surrogates import Piece, Surrogate


class Buckets:
    """Sums of ℓ(s - a) over the examples s, for all anchors a at once.

    Args:
        anchors: (..., k) scores of the anchors; every leading row is a task of its own.
        surrogate: A surrogate that has pieces.
        margin: Its margin.
    """

    def __init__(self, anchors: Tensor, surrogate: Surrogate, margin: float) -> None:
        if surrogate.pieces is None:
            raise ValueError(
                f"surrogate {surrogate.name!r} is not a piecewise polynomial: use method 'grid' or 'dense'"
            )
        self.pieces = surrogate.pieces(margin)
        self.degree = max(power for piece in self.pieces for power in range(3) if piece.coefficients[power])
        self.reference, relative = centred(anchors)
        self.anchors, self._order = relative.sort(-1)
        count = anchors.shape[-1]
        knots = torch.cat([self.anchors + piece.start for piece in self.pieces], -1)
        self.edges, origin = knots.sort(-1)
        # Where among the edges the knots of each piece stand, and how many of them lie at or below each edge.
        # Equal edges may stand in any order: there is no bucket between them.
        places = torch.arange(origin.shape[-1], device=anchors.device).expand_as(origin)
        self._places = torch.empty_like(origin).scatter_(-1, origin, places).split(count, -1)
        piece_of_edge = origin // count
        self._counts = [(piece_of_edge == number).cumsum(-1) for number in range(len(self.pieces))]
        shape = (self.degree + 1, 2, *self.edges.shape[:-1], self.edges.shape[-1] + 1)
        self.moments = torch.zeros(shape, dtype=torch.float64, device=anchors.device)
        self._cells = {
            width: _cells(self.edges, width) for width in {_cell_width(piece) for piece in self.pieces} if width
        }
        self._powers: list[Tensor] = []
        self._linear: tuple[Tensor, Tensor]

    def locate(self, scores: Tensor) -> Tensor:
        """Return each example's bucket: the number of knots at or below its score."""
        return edges_at_or_below(self.edges, scores.double() - self.reference)

    def add(self, scores: Tensor, weight: Tensor, bucket: Tensor | None = None) -> None:
        """Add examples: scores (..., m) and their two weights (2, ..., m)."""
        bucket = self.locate(scores) if bucket is None else bucket
        mass = weight.to(torch.float64, copy=True)
        index = bucket.expand_as(mass)
        self.moments[0].scatter_add_(-1, index, mass)
        if self.degree:
            distance = self._distance(scores, bucket)
            for power in range(1, self.degree + 1):
                self.moments[power].scatter_add_(-1, index, mass.mul_(distance))

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""
        # Σ (x - start)^p over the examples of a piece, (degree + 1, 2, ..., k): value and slope are combinations.
        prefix = {
            width: _local_prefix(self.edges, self.moments[..., 1:], rest, width)
            for width, (_, rest) in self._cells.items()
        }
        self._powers = [self._power_sums(number, prefix) for number in range(len(self.pieces))]
        return self._unsort(self._combine(self.pieces).clamp_min_(0))

    def backward(self, cotangent: Tensor) -> Tensor:
        """Take d(objective)/d(sums), (2, ..., k); return the anchors' gradient and get ready for `gradient`."""
        weight = cotangent.double().gather(-1, self._order.expand_as(cotangent))
        constant = torch.zeros((2, *self.edges.shape), dtype=torch.float64, device=self.edges.device)
        slope = torch.zeros_like(constant)
        slopes = tuple(_derivative(piece) for piece in self.pieces)
        for number, (_, _, coefficients) in enumerate(slopes):
            if any(coefficients):
                zeroth, first = self._anchor_sums(number, weight)
                constant += coefficients[0] * zeroth
                if coefficients[1]:
                    constant += coefficients[1] * first
                    slope += coefficients[1] * zeroth
        self._linear = pad(constant, (1, 0)), pad(slope, (1, 0))
        return -self._unsort((weight * self._combine(slopes)).sum(0))

    def gradient(self, scores: Tensor, weight: Tensor, bucket: Tensor | None = None) -> Tensor:
        """Return the gradient with respect to `scores`, (..., m), after `backward`."""
        bucket = self.locate(scores) if bucket is None else bucket
        index = bucket.expand_as(weight)
        constant, slope = (table.gather(-1, index) for table in self._linear)
        return slope.mul_(self._distance(scores, bucket)).add_(constant).mul_(weight).sum(0)

    def _distance(self, scores: Tensor, bucket: Tensor) -> Tensor:
        # Bucket 0 lies below every knot and contributes nothing; its distances are only kept finite.
        return (scores.double() - self.reference).sub_(self.edges.gather(-1, (bucket - 1).clamp_min_(0)))

    def _combine(self, pieces: tuple[Piece, ...]) -> Tensor:
        total = torch.zeros((2, *self.anchors.shape), dtype=torch.float64, device=self.anchors.device)
        for (_, _, coefficients), powers in zip(pieces, self._powers, strict=True):
            for power, coefficient in enumerate(coefficients):
                if coefficient:
                    total.add_(powers[power], alpha=coefficient)
        return total

    def _power_sums(self, number: int, prefix: dict[float, Tensor]) -> Tensor:
        piece = self.pieces[number]
        powers = 1 + max(power for power in range(3) if piece.coefficients[power])
        begin, width = self._places[number], _cell_width(piece)
        if not width:
            return _examples_above(self.edges, self.moments[:powers, ..., 1:], begin)
        cell, rest = self._cells[width]
        end = self._places[number + 1]
        middle = torch.searchsorted(cell, cell.gather(-1, begin) + 1).clamp_(begin, end)
        parts = _differences(prefix[width][:powers], (begin, middle, end))
        own = rest.gather(-1, begin)
        # y = r - own in the cell where the piece begins, and `width` more in the next.
        return _recentre(parts, torch.stack([-own, width - own], -2)).sum(-2)

    def _anchor_sums(self, number: int, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ w and Σ w·(e - v) over the anchors whose piece covers the edge e and starts at v, (2, ..., K)."""
        place, end, width = self._places[number], self._counts[number], _cell_width(self.pieces[number])
        if not width:
            return _anchors_below(self.edges.gather(-1, place), weight, self.edges, end)
        cell, rest = self._cells[width]
        begin = self._counts[number + 1]
        middle = torch.searchsorted(cell.gather(-1, place), cell).clamp_(begin, end)
        prefix = pad(torch.stack([weight, weight * rest.gather(-1, place)]).cumsum(-1), (1, 0))
        mass, moment = _differences(prefix, (begin, middle, end))
        total = mass.sum(-2)
        return total, rest * total + width * mass[..., 0, :] - moment.sum(-2)

    def _unsort(self, values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(-1, self._order.expand_as(values), values)


def centred(anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median anchor of each task and all anchors relative to it, in float64.

    Differences of neighbours are exact in floating point; relative to a typical anchor an offset costs no digits.
    """
    anchors = anchors.detach().double().contiguous()
    reference = anchors.median(-1, keepdim=True).values
    return reference, anchors - reference


def _derivative(piece: Piece) -> Piece:
    _, first, second = piece.coefficients
    return Piece(piece.start, piece.stop, (first, 2 * second, 0))


def _examples_above(edges: Tensor, moments: Tensor, place: Tensor) -> Tensor:
    """Return Σ (s - v)^p over the examples s ≥ v, v the edge at `place`; all terms are non-negative."""
    tables: list[Tensor] = []
    gap = torch.diff(edges, append=edges[..., -1:])
    for power, term in enumerate(moments.unbind(0)):
        # What lies in higher buckets is further away by the gaps between.
        above = [pad(table[..., 1:], (0, 1)) for table in tables]
        if power == 1:
            term = term + gap * above[0]
        elif power == 2:
            term = term + gap * (2 * above[1] + gap * above[0])
        tables.append(term.flip(-1).cumsum(-1).flip(-1))
    return _take(torch.stack(tables), place)


def _local_prefix(edges: Tensor, moments: Tensor, rest: Tensor, width: float) -> Tensor:
    """Return prefix sums over the buckets of Σ r^p, r the distance of an example from the origin of its edge's cell."""
    if moments.shape[0] > 1:
        # A bucket wider than the piece lies in no window; far examples in it would only swamp the sums.
        gap = torch.diff(edges, append=edges[..., -1:] + 2 * width)
        moments = torch.cat([moments[:1], torch.where(gap <= width, moments[1:], 0)])
    return pad(_recentre(moments, rest).cumsum(-1), (1, 0))


def _anchors_below(knots: Tensor, weight: Tensor, edges: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ w and Σ w·(e - v) over the first `count` knots v, those at or below each edge e."""
    zeroth = weight.cumsum(-1)
    at_knot = pad((zeroth[..., :-1] * torch.diff(knots, dim=-1)).cumsum(-1), (1, 0))
    last = (count - 1).clamp_min(0)
    mass, moment = _take(torch.stack([zeroth, at_knot]), last)
    found = count > 0
    return torch.where(found, mass, 0), torch.where(found, moment + mass * (edges - knots.gather(-1, last)), 0)


def _cell_width(piece: Piece) -> float:
    """Return twice the piece's width, so that it touches two cells at most; 0 for a piece without end."""
    return 0.0 if piece.stop is None else 2 * (piece.stop - piece.start)


def _cells(values: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return which cell of `width` each value lies in, and its distance from the cell's origin."""
    cell = (values / width).floor()
    # Far beyond 2⁵³ widths the product is rounded so coarsely that the rest could be anything.
    return cell, (values - cell * width).clamp_(0, width)


def _recentre(powers: Tensor, shift: Tensor) -> Tensor:
    """Return Σ (r + shift)^p from Σ r^p, stacked over p in front."""
    moved = [powers[0]]
    if powers.shape[0] > 1:
        moved.append(powers[1] + shift * powers[0])
    if powers.shape[0] > 2:
        moved.append(powers[2] + shift * (2 * powers[1] + shift * powers[0]))
    return torch.stack(moved)


def _take(tables: Tensor, index: Tensor) -> Tensor:
    """Return tables (p, 2, ..., K) at `index` (..., k)."""
    return tables.gather(-1, index.expand(*tables.shape[:-1], index.shape[-1]))


def _differences(prefix: Tensor, bounds: tuple[Tensor, ...]) -> Tensor:
    """Return sums between neighbouring bounds from prefix sums: (p, 2, ..., len(bounds) - 1, k)."""
    taken = _take(prefix, torch.cat(bounds, -1))
    at = taken.view(*taken.shape[:-1], len(bounds), -1)
    return at[..., 1:, :] - at[..., :-1, :]
