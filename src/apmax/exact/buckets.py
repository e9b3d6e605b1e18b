"""Pair sums of a piecewise polynomial surrogate in O((n + k) log k): one binary search for each example.

Every anchor a has knots a + x where the polynomial of ℓ(s - a) changes. All knots, sorted, cut the line into buckets;
inside a bucket ℓ(s - a) is one polynomial for every anchor. So three moments of a bucket (the number of examples, the
sums of their distances d from its left edge and of d²) suffice for all anchors, and the gradient of an example is
`constant[bucket] + slope[bucket]·d`. Moments add up over chunks and over processes.

Accuracy. A piece without end (hinges) is accumulated from the top by a recurrence whose terms are all non-negative.
A bounded piece is a difference of prefix sums; these are taken relative to cells twice as wide as the piece, so that
neither an offset of all scores nor one far outlier costs digits. The same holds in the backward pass, where a piece
adds to the sums over the buckets where it begins and subtracts the same where it ends.

A knot a + x need not be a float64: near 1e17 they are 16 apart. Its edge is the knot rounded up, so that s ≥ edge
means s ≥ knot for every float64 s, and the excess of the edge over the knot is kept: distances s - knot are exact
wherever the scores lie and however small the margin is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from apmax.exact.search import Located, edges_at_or_below, sort
from apmax.surrogates import Piece, Surrogate


class BucketTable:
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
        self.pieces = _contiguous(surrogate.pieces(margin), surrogate.name)
        self.degree = _degree(self.pieces)
        self.anchors, self._order = sort(anchors.detach().double().contiguous())
        count = anchors.shape[-1]
        rounded = [_rounded_up_sum(self.anchors, piece.start) for piece in self.pieces]
        # How far each knot lies below its edge, piece by piece.
        self._excess = torch.cat([excess for _, excess in rounded], -1)
        self.edges, origin = sort(torch.cat([edge for edge, _ in rounded], -1))
        # Bucket 0 lies below every knot and contributes nothing; its distances are only kept finite.
        self._left = torch.cat([self.edges[..., :1], self.edges], -1)
        # The positions of the knots among the edges, piece by piece. Equal edges may be in any order: no bucket lies
        # between them.
        places = torch.arange(origin.shape[-1], device=anchors.device).expand_as(origin)
        self._places = torch.empty_like(origin).scatter_(-1, origin, places)
        shape = (self.degree + 1, 2, *self.edges.shape[:-1], self.edges.shape[-1] + 1)
        self.moments = torch.zeros(shape, dtype=torch.float64, device=anchors.device)
        widths = [piece.stop - piece.start for piece in self.pieces if piece.stop is not None]
        # At least twice as wide as a bounded piece, so that it touches two cells at most.
        self._width = _power_of_two_above(2 * max(widths)) if widths else 0.0
        if self._width:
            cell, self._rest = _cells(self.edges, self._width)
            # A bucket wider than a piece (and than the rounding of its edges) lies in none, nor does the last, which
            # has no end.
            upper = self.edges[..., 1:]
            gap = torch.nextafter(upper, torch.full_like(upper, torch.inf)) - upper
            self._wide = pad(torch.diff(self.edges) > self._width + gap, (0, 1), value=True)
            # Numbers of edges: where bounded pieces begin, where they pass into the next cell, and where they end.
            begin, end = self._places[..., :-count], self._places[..., count:]
            middle = edges_at_or_below(cell, cell.gather(-1, begin)).clamp_(begin, end)
            self._bounds = begin, middle, end
            self._begin_rest = self._rest.gather(-1, begin) - self._excess[..., :-count]
        self._powers: list[Tensor] = []
        self._linear: Tensor

    def locate(self, scores: Tensor) -> Located:
        """Return each example's bucket (the number of knots at or below its score) and distance from its left edge."""
        scores = scores.double()
        bucket = edges_at_or_below(self.edges, scores)
        return Located(bucket, scores - self._left.gather(-1, bucket))

    def add(self, located: Located, weight: Tensor) -> None:
        """Add located examples (..., m) with their two weights (2, ..., m)."""
        mass = weight.to(torch.float64, copy=True)
        index = located.entry.expand_as(mass)
        self.moments[0].scatter_add_(-1, index, mass)
        for power in range(1, self.degree + 1):
            self.moments[power].scatter_add_(-1, index, mass.mul_(located.part))

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""
        # Σ (x - start)^p over the examples of a piece, (degree + 1, 2, ..., k): value and slope are combinations.
        self._powers = [*self._bounded_powers(), self._endless_powers()] if self._width else [self._endless_powers()]
        return self._unsort(self._combine(self.pieces).clamp_min_(0))

    def backward(self, cotangent: Tensor) -> Tensor:
        """Take d(objective)/d(sums), (2, ..., k); return the anchors' gradient and get ready for `gradient`."""
        weight = cotangent.double().gather(-1, self._order.expand_as(cotangent))
        slopes = tuple(_derivative(piece) for piece in self.pieces)
        # Both coefficients of every bucket, (2, 2, ..., K + 1); bucket 0 has none.
        if self._width:
            self._linear = self._bounded_linear(weight, slopes[:-1])
        else:
            self._linear = self.moments.new_zeros(2, *self.moments.shape[1:])
        if any(slopes[-1].coefficients):
            self._linear[..., 1:] += self._endless_linear(weight, slopes[-1])
        return -self._unsort((weight * self._combine(slopes)).sum(0))

    def gradient(self, located: Located, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the scores of located examples, (..., m), after `backward`."""
        index = located.entry.expand_as(weight)
        constant, slope = (table.gather(-1, index) for table in self._linear)
        product: Tensor = slope.mul_(located.part).add_(constant).mul_(weight)
        return product[0] + product[1]

    def _combine(self, pieces: tuple[Piece, ...]) -> Tensor:
        total = torch.zeros((2, *self.anchors.shape), dtype=torch.float64, device=self.anchors.device)
        for (_, _, coefficients), powers in zip(pieces, self._powers, strict=True):
            for power, coefficient in enumerate(coefficients):
                if coefficient:
                    total.add_(powers[power], alpha=coefficient)
        return total

    def _endless_powers(self) -> Tensor:
        """Return Σ (s - v)^p over the examples s ≥ v, v an anchor's last knot; all terms are non-negative."""
        tables: list[Tensor] = []
        gap = torch.diff(self.edges, append=self.edges[..., -1:]) if _degree(self.pieces[-1:]) else self.edges
        for power, term in enumerate(self.moments[: _degree(self.pieces[-1:]) + 1, ..., 1:].unbind(0)):
            # Examples in higher buckets are further away by the gaps between.
            above = [pad(table[..., 1:], (0, 1)) for table in tables]
            if power == 1:
                term = term + gap * above[0]
            elif power == 2:
                term = term + gap * (2 * above[1] + gap * above[0])
            tables.append(term.flip(-1).cumsum(-1).flip(-1))
        powers = _take(torch.stack(tables), self._places[..., -self.anchors.shape[-1] :])
        _recentre(powers, self._excess[..., -self.anchors.shape[-1] :])
        return powers

    def _bounded_powers(self) -> tuple[Tensor, ...]:
        """Return Σ (s - v)^p over the examples of each bounded piece, v where it begins: all pieces at one go."""
        moments = self.moments[: _degree(self.pieces[:-1]) + 1].clone()
        moments[..., 0] = 0
        # Far examples in a wide bucket would only swamp the sums.
        moments[1:, ..., 1:].masked_fill_(self._wide, 0)
        _recentre(moments[..., 1:], self._rest)
        powers = _differences(moments.cumsum(-1), self._bounds)
        # s - v is r - own in the cell where the piece begins, and `width` more in the next.
        _recentre(powers, torch.stack([-self._begin_rest, self._width - self._begin_rest], -2))
        here, next_cell = powers.unbind(-2)
        by_piece: tuple[Tensor, ...] = (here + next_cell).split(self.anchors.shape[-1], -1)
        return by_piece

    def _endless_linear(self, weight: Tensor, slope: Piece) -> Tensor:
        """Return the sums over the anchors of the last piece's slope: at every edge, and the rate of change there."""
        c0, c1, _ = slope.coefficients
        knot = self._places[..., -self.anchors.shape[-1] :]
        # How many anchors' last knots v are not above the edge e; over these go Σ w and Σ w·(e - v).
        count = torch.zeros_like(self._places).scatter_(-1, knot, 1).cumsum(-1)
        last = (count - 1).clamp_min(0)
        mass = weight.cumsum(-1)
        zeroth = torch.where(count > 0, _take(mass, last), 0)
        if not c1:
            return torch.stack([c0 * zeroth, torch.zeros_like(zeroth)])
        knots = self.edges.gather(-1, knot)
        excess = self._excess[..., -self.anchors.shape[-1] :]
        moment = pad((mass[..., :-1] * torch.diff(knots, dim=-1)).cumsum(-1), (1, 0)) + (weight * excess).cumsum(-1)
        first = _take(moment, last) + zeroth * (self.edges - knots.gather(-1, last))
        return torch.stack([c0 * zeroth + c1 * first, c1 * zeroth])

    def _bounded_linear(self, weight: Tensor, slopes: tuple[Piece, ...]) -> Tensor:
        """Return the sums over the anchors of the bounded pieces' slopes, as both coefficients of every bucket.

        A piece adds w·(c0 + c1·(s - v)) to the buckets from v, where it begins, to its end. With r the distance from
        the origin of a cell, s - v is r(s) - r(v), and `width` more from the next cell on.
        """
        begin, middle, end = self._bounds
        steep = torch.cat([weight * slope.coefficients[1] for slope in slopes], -1)
        level = torch.cat([weight * slope.coefficients[0] for slope in slopes], -1) - steep * self._begin_rest
        change = torch.stack([level, steep, self._width * steep])
        jumps = self.moments.new_zeros(3, *self.moments.shape[1:])
        at_edge = jumps[..., 1:]
        at_edge.scatter_add_(-1, torch.stack([begin, begin, middle]).unsqueeze(1).expand_as(change), change)
        at_edge.scatter_add_(-1, end.expand_as(change), -change)
        constant, slope, further = sums = jumps.cumsum(-1)
        constant.add_(further)[..., 1:].addcmul_(slope[..., 1:], self._rest)
        # No piece reaches these buckets: a rounding error there would be multiplied by any distance.
        sums[:2, ..., 1:].masked_fill_(self._wide, 0)
        return sums[:2]

    def _unsort(self, values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(-1, self._order.expand_as(values), values)


def _degree(pieces: tuple[Piece, ...]) -> int:
    # Not max(..., default=0), which torch.compile does not take.
    powers = [power for piece in pieces for power in range(3) if piece.coefficients[power]]
    return max(powers) if powers else 0


def _contiguous(pieces: tuple[Piece, ...], name: str) -> tuple[Piece, ...]:
    """Return pieces of which the last has no end, 0 where there was none, or raise if they leave gaps or overlap."""
    stops = [piece.stop for piece in pieces]
    starts: list[float | None] = [piece.start for piece in pieces[1:]]
    if not pieces or stops[:-1] != starts or any(p.stop is not None and p.stop <= p.start for p in pieces):
        raise ValueError(
            f"surrogate {name!r}: each of its pieces must begin where the one before it ends, got {pieces!r}; "
            "mend `pieces`, or take method 'dense'"
        )
    return pieces if stops[-1] is None else (*pieces, Piece(stops[-1], None, (0, 0, 0)))


def _derivative(piece: Piece) -> Piece:
    _, first, second = piece.coefficients
    return Piece(piece.start, piece.stop, (first, 2 * second, 0))


def _rounded_up_sum(values: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    """Return the smallest float64 numbers that are not below `values + offset`, and their excess over that sum.

    >>> _rounded_up_sum(torch.tensor([0.0, 1e17], dtype=torch.float64), 1.0)[1].tolist()  # 1e17 + 16 is the next
    [0.0, 15.0]
    """
    total = values + offset
    # The rounding error of a sum is itself a float64 (Knuth's TwoSum).
    without = total - values
    error = (values - (total - without)) + (offset - without)
    above = torch.nextafter(total, torch.full_like(total, torch.finfo(total.dtype).max))
    edge = torch.where(error > 0, above, total)
    return edge, (edge - total) - error


def _power_of_two_above(value: float) -> float:
    """Return the smallest power of two above `value`."""
    return math.ldexp(1.0, math.frexp(value)[1])


def _cells(values: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return which cell each value lies in, and its distance from the cell's origin; exact, as `width` is 2ⁿ."""
    cell = (values / width).floor()
    # Only a cell number beyond the range of float64 leaves something to clamp.
    return cell, (values - cell * width).clamp_(0, width)


def _recentre(powers: Tensor, shift: Tensor) -> None:
    """Turn Σ r^p, stacked over p in front, into Σ (r + shift)^p."""
    for first in range(1, powers.shape[0]):
        for power in range(powers.shape[0] - 1, first - 1, -1):
            powers[power].addcmul_(shift, powers[power - 1])


def _take(tables: Tensor, index: Tensor) -> Tensor:
    """Return tables (2, ..., K), or several in front of each other, at `index` (..., k)."""
    return tables.gather(-1, index.expand(*tables.shape[:-1], index.shape[-1]))


def _differences(prefix: Tensor, bounds: tuple[Tensor, ...]) -> Tensor:
    """Return sums between neighbouring bounds from prefix sums: (p, 2, ..., len(bounds) - 1, k)."""
    taken = _take(prefix, torch.cat(bounds, -1))
    at = taken.view(*taken.shape[:-1], len(bounds), -1)
    return at[..., 1:, :] - at[..., :-1, :]
