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

from apmax.exact.search import Place, edges_at_or_below, edges_below, sort
from apmax.surrogates import Piece, Surrogate


class Buckets:
    """Sums of ℓ(s - a) over the examples s, for all anchors a at once.

    Args:
        anchors: (..., k) scores of the anchors; every leading row is a task of its own.
        surrogate: A surrogate that has pieces: bounded ones of equal width, then one without end.
        margin: Its margin.
    """

    def __init__(self, anchors: Tensor, surrogate: Surrogate, margin: float) -> None:
        if surrogate.pieces is None:
            raise ValueError(
                f"surrogate {surrogate.name!r} is not a piecewise polynomial: use method 'grid' or 'dense'"
            )
        self.pieces = surrogate.pieces(margin)
        self.degree = _degree(self.pieces)
        self.reference, relative = centred(anchors)
        self.anchors, self._order = sort(relative)
        count = anchors.shape[-1]
        knots = torch.cat([self.anchors + piece.start for piece in self.pieces], -1)
        self.edges, origin = sort(knots)
        # Bucket 0 lies below every knot and contributes nothing; its distances are only kept finite.
        self._left = torch.cat([self.edges[..., :1], self.edges], -1)
        # Where among the edges the knots of each piece stand, and how many of them lie at or below each edge.
        # Equal edges may stand in any order: there is no bucket between them.
        places = torch.arange(origin.shape[-1], device=anchors.device).expand_as(origin)
        self._places = torch.empty_like(origin).scatter_(-1, origin, places)
        number = torch.arange(len(self.pieces), device=anchors.device).view(-1, *[1] * origin.ndim)
        self._counts = (origin // count == number).cumsum(-1)
        shape = (self.degree + 1, 2, *self.edges.shape[:-1], self.edges.shape[-1] + 1)
        self.moments = torch.zeros(shape, dtype=torch.float64, device=anchors.device)
        first = self.pieces[0]
        # Twice as wide as a bounded piece, so that it touches two cells at most.
        self._width = 0.0 if first.stop is None else 2 * (first.stop - first.start)
        if self._width:
            self._cell, self._rest = _cells(self.edges, self._width)
        self._powers: list[Tensor] = []
        self._linear: tuple[Tensor, Tensor]

    def locate(self, scores: Tensor) -> Place:
        """Return each example's bucket (the number of knots at or below its score) and distance from its left edge."""
        relative = scores.double() - self.reference
        bucket = edges_at_or_below(self.edges, relative)
        return Place(bucket, relative.sub_(self._left.gather(-1, bucket)))

    def add(self, place: Place, weight: Tensor) -> None:
        """Add located examples (..., m) with their two weights (2, ..., m)."""
        mass = weight.to(torch.float64, copy=True)
        index = place.entry.expand_as(mass)
        self.moments[0].scatter_add_(-1, index, mass)
        for power in range(1, self.degree + 1):
            self.moments[power].scatter_add_(-1, index, mass.mul_(place.part))

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""
        # Σ (x - start)^p over the examples of a piece, (degree + 1, 2, ..., k): value and slope are combinations.
        self._powers = [*self._bounded_powers(), self._endless_powers()] if self._width else [self._endless_powers()]
        return self._unsort(self._combine(self.pieces).clamp_min_(0))

    def backward(self, cotangent: Tensor) -> Tensor:
        """Take d(objective)/d(sums), (2, ..., k); return the anchors' gradient and get ready for `gradient`."""
        weight = cotangent.double().gather(-1, self._order.expand_as(cotangent))
        constant = torch.zeros((2, *self.edges.shape), dtype=torch.float64, device=self.edges.device)
        slope = torch.zeros_like(constant)
        slopes = tuple(_derivative(piece) for piece in self.pieces)
        sums = self._bounded_anchors(weight) if self._width else []
        if any(slopes[-1].coefficients):
            sums.append(self._endless_anchors(weight))
        # Where the last piece is flat, nothing is summed for it.
        for (_, _, (c0, c1, _)), (zeroth, first) in zip(slopes, sums, strict=False):
            constant.add_(zeroth, alpha=c0)
            if c1:
                constant.add_(first, alpha=c1)
                slope.add_(zeroth, alpha=c1)
        self._linear = pad(constant, (1, 0)), pad(slope, (1, 0))
        return -self._unsort((weight * self._combine(slopes)).sum(0))

    def gradient(self, place: Place, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the scores of located examples, (..., m), after `backward`."""
        index = place.entry.expand_as(weight)
        constant, slope = (table.gather(-1, index) for table in self._linear)
        return slope.mul_(place.part).add_(constant).mul_(weight).sum(0)

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
            # What lies in higher buckets is further away by the gaps between.
            above = [pad(table[..., 1:], (0, 1)) for table in tables]
            if power == 1:
                term = term + gap * above[0]
            elif power == 2:
                term = term + gap * (2 * above[1] + gap * above[0])
            tables.append(term.flip(-1).cumsum(-1).flip(-1))
        return _take(torch.stack(tables), self._places[..., -self.anchors.shape[-1] :])

    def _bounded_powers(self) -> tuple[Tensor, ...]:
        """Return Σ (s - v)^p over the examples of each bounded piece, v where it begins: all pieces at one go."""
        count, moments = self.anchors.shape[-1], self.moments[: _degree(self.pieces[:-1]) + 1, ..., 1:]
        # A bucket wider than a piece lies in none; far examples in it would only swamp the sums.
        gap = torch.diff(self.edges, append=self.edges[..., -1:] + 2 * self._width)
        moments = torch.cat([moments[:1], torch.where(gap <= self._width, moments[1:], 0)])
        prefix = pad(_recentre(moments, self._rest).cumsum(-1), (1, 0))
        begin, end = self._places[..., :-count], self._places[..., count:]
        middle = edges_below(self._cell, self._cell.gather(-1, begin) + 1).clamp_(begin, end)
        own = self._rest.gather(-1, begin)
        # s - v is r - own in the cell where the piece begins, and `width` more in the next.
        powers = _recentre(_differences(prefix, (begin, middle, end)), torch.stack([-own, self._width - own], -2))
        by_piece: tuple[Tensor, ...] = powers.sum(-2).split(count, -1)
        return by_piece

    def _endless_anchors(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ w and Σ w·(e - v) over the anchors whose last knot v is not above the edge e."""
        count = self._counts[-1]
        knots = self.edges.gather(-1, self._places[..., -self.anchors.shape[-1] :])
        zeroth = weight.cumsum(-1)
        at_knot = pad((zeroth[..., :-1] * torch.diff(knots, dim=-1)).cumsum(-1), (1, 0))
        last = (count - 1).clamp_min(0)
        mass, moment = _take(torch.stack([zeroth, at_knot]), last)
        first = moment + mass * (self.edges - knots.gather(-1, last))
        return torch.where(count > 0, mass, 0), torch.where(count > 0, first, 0)

    def _bounded_anchors(self, weight: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return, for each bounded piece, Σ w and Σ w·(e - v) over the anchors whose piece covers e and begins at v."""
        count, bounded = self.anchors.shape[-1], len(self.pieces) - 1
        # All bounded pieces at one go: they stand in front of the tasks.
        place = self._places[..., :-count].unflatten(-1, (bounded, count)).movedim(-2, 0)
        begin, end = self._counts[1:], self._counts[:-1]
        middle = torch.stack([edges_below(self._cell.gather(-1, own), self._cell) for own in place]).clamp_(begin, end)
        rest = self._rest.expand(bounded, *self._rest.shape)
        moment = weight.unsqueeze(1) * rest.gather(-1, place)
        prefix = pad(torch.stack([weight.unsqueeze(1).expand_as(moment), moment]).cumsum(-1), (1, 0))
        mass, moment = _differences(prefix, (begin, middle, end))
        zeroth = mass.sum(-2)
        first = (self._rest * zeroth).add_(mass[..., 0, :], alpha=self._width).sub_(moment.sum(-2))
        return list(zip(zeroth.unbind(1), first.unbind(1), strict=True))

    def _unsort(self, values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(-1, self._order.expand_as(values), values)


def centred(anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median anchor of each task and all anchors relative to it, in float64.

    Differences of neighbours are exact in floating point; relative to a typical anchor an offset costs no digits.
    """
    anchors = anchors.detach().double().contiguous()
    reference = anchors.median(-1, keepdim=True).values
    return reference, anchors - reference


def _degree(pieces: tuple[Piece, ...]) -> int:
    return max(power for piece in pieces for power in range(3) if piece.coefficients[power])


def _derivative(piece: Piece) -> Piece:
    _, first, second = piece.coefficients
    return Piece(piece.start, piece.stop, (first, 2 * second, 0))


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
