"""Which tokens of one row may be drawn, and how likely each is. On the row's device, without a sync."""

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from specialist.ops.sampling.places import all_true, falling, first_passed, rising_order, sizes_are_free
from specialist.sampling import Sampling

_COLDEST = 1e-300
"""A GPU divides by multiplying with the inverse, which must be finite."""


class Candidates(NamedTuple):
    """By rising id. Where leaving some out would cost a sync, they stay with a score of -inf."""

    scores: Tensor
    """[n]"""
    ids: Tensor
    """[n]"""

    def only(self, kept: Tensor) -> "Candidates":
        if not sizes_are_free(kept):
            return Candidates(self.scores.masked_fill(~kept, -torch.inf), self.ids)
        places = all_true(kept)
        return Candidates(self.scores[places], self.ids[places])

    def normalised(self) -> "Candidates":
        """Scores made log probabilities."""
        return Candidates(self.scores.log_softmax(0), self.ids)


def leaders(logits: Tensor, count: int) -> Candidates:
    """The `count` largest of [vocab], and what ties with the last of them; 0 for all."""
    everyone = Candidates(logits, torch.arange(logits.shape[0], device=logits.device))
    if not 0 < count < logits.shape[0]:
        return everyone
    least = torch.topk(logits, count, sorted=False).values.min()
    return everyone.only(logits >= least)


def candidates(logits: Tensor, want: Sampling) -> Candidates:
    """Log probabilities, float64. logits: [vocab], temperature not yet applied; the largest is finite."""
    found = leaders(logits, want.top_k)
    below = found.scores.double() - found.scores.max().double()  # 0 at most: no temperature makes it overflow
    found = Candidates(below / max(want.temperature, _COLDEST), found.ids).normalised()
    if want.typical_p < 1.0:
        found = _typical(found, want.typical_p)
    if want.top_p < 1.0:
        found = _top_p(found, want.top_p)
    if want.min_p > 0.0:
        found = found.only(found.scores >= found.scores.max() + log(want.min_p)).normalised()
    return found


def _typical(found: Candidates, mass: float) -> Candidates:
    """Those whose surprise is nearest to the expected one, until `mass` is reached; ties with the last stay."""
    p = found.scores.exp()
    entropy = -(p * found.scores).nansum()  # 0 * -inf counts nothing
    distance = (-found.scores - entropy).abs()
    order = rising_order(distance)
    last = (p[order].cumsum(0) < mass).sum().clamp(max=len(order) - 1)
    furthest = distance.take(order.take(last))  # an index in brackets that has no dimension would sync
    return found.only(distance <= furthest).normalised()


def _top_p(found: Candidates, mass: float) -> Candidates:
    """The fewest most likely that reach `mass`, one at least; of equals the lower ids."""
    # all below this together weigh less than 1 - mass: they cannot be among them, and are not worth sorting
    found = found.only(found.scores >= log((1.0 - mass) / 2 / len(found.ids)))
    ranked = falling(found.scores)
    p = ranked.exp()
    count = ((p.cumsum(0) - p) < mass).sum().clamp(min=1)
    least = ranked.take(count - 1)
    above, equal = found.scores > least, found.scores == least
    return found.only(above | (equal & (equal.cumsum(0) <= count - above.sum()))).normalised()


def draw(found: Candidates, uniform: float) -> Tensor:
    """[1], the id at which the running sum of probabilities passes `uniform`."""
    return found.ids[first_passed(found.scores.exp(), uniform)]
