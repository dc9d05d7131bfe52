"""Steps that were launched on a GPU, and what they draw."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

from specialist.engines.native.shaped_draw import is_plain
from specialist.ops.reference.sampling import SampledToken, logits_fault
from specialist.scheduling.sequence import Request
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import RowFault


class Arriving(Protocol):
    """A launched step, whose tokens are still on their way."""

    @property
    def stays(self) -> bool:
        """Whether the next launch may take these tokens, as those of rows in their order. So it is with `launch`."""

    def wait(self) -> tuple[list[int], list[float]]:
        """Wait for the step. Return each row's token and largest logit."""


class Begun(NamedTuple):
    """A launched step, and those of its samples that are known, by their place among all."""

    arriving: Arriving
    found: Mapping[int, SampledToken | RowFault]

    def samples(self) -> list[SampledToken | RowFault]:
        """Wait for the samples. Only the temperature matters in those that are not known."""
        each = enumerate(zip(*self.arriving.wait(), strict=True))
        return [
            self.found.get(place) or fault_of(peak, is_changed=False) or SampledToken(token, None)
            for place, (token, peak) in each
        ]

    def tokens(self, sequences: Sequence[Tracked]) -> list[int | RowFault]:
        """Wait for the tokens of a step with one sample for each of these sequences."""
        drawn: list[int | RowFault] = []
        for place, (seq, token, peak) in enumerate(zip(sequences, *self.arriving.wait(), strict=True)):
            found = self.found.get(place)
            if found is not None:
                drawn.append(found.token if isinstance(found, SampledToken) else found)
            else:
                fault = fault_of(peak, is_changed=not is_unchanged(seq.request))
                drawn.append(token if fault is None else fault)
        return drawn


def is_unchanged(request: Request) -> bool:
    """Whether only the temperature matters."""
    return request.guide is None and is_plain(request.sampling)


def fault_of(peak: float, *, is_changed: bool) -> RowFault | None:
    """`peak` is the largest logit after all changes."""
    return logits_fault(0.0 if peak == -inf and is_changed else peak, peak)
