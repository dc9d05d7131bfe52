"""The window of a draft model follows what its guesses are worth, with step times as they were measured on a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from specialist.engines.sim.engine import CostModel, SimModel
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.sequence import GREEDY, Request, Sampling
from specialist.scheduling.step import Emitted, Finished, Step
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import BARE
from tests.laws.small_model import SmallModel, small_model

_PROMPT, _ANSWER, _WINDOW = 128, 200, 16
_PREFILL = 10.0  # the times are in milliseconds
_PLAIN = {1: 4.3, 4: 4.35, 16: 4.48}
_CHECK = {2: 4.57, 4: 4.67, 16: 4.91, 32: 5.51, 64: 6.65, 96: 7.7, 128: 7.75, 144: 16.5, 272: 19.3}
_GUESS = {1: 0.71, 4: 0.86, 16: 1.16, 64: 1.6}
_READ_STEP, _READ_TOKEN = 2.0, 0.0017


def _between(points: Mapping[int, float], number: int) -> float:
    """Return the value at `number`, on straight lines between the points; beyond the last one, in proportion."""
    below, last = min(points), max(points)
    for above in sorted(points):
        if number <= above:
            share = (number - below) / (above - below) if above > below else 0.0
            return points[below] + (points[above] - points[below]) * share
        below = above
    return points[last] * number / last


class _LargeCost(CostModel):
    def seconds(self, step: Step, *, switched: bool) -> float:
        if step.rows[0].sequence.prefilling:
            return _PREFILL / 1e3
        return _between(_CHECK if any(row.num_drafts for row in step.rows) else _PLAIN, step.num_tokens) / 1e3


class _SmallCost(CostModel):
    def seconds(self, step: Step, *, switched: bool) -> float:
        if any(row.num_samples for row in step.rows):
            return _between(_GUESS, step.num_tokens) / 1e3
        return (_READ_STEP + _READ_TOKEN * step.num_tokens) / 1e3


@dataclass(frozen=True, slots=True)
class _RatedModel(SmallModel):
    """Is right for this share of the tokens."""

    share: float = 1.0

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        drawn = SimModel.sample(self, context, state, seed, position, allowed)
        is_wrong = (context * 0x9E3779B97F4A7C15 >> 20) % 1000 >= 1000 * self.share
        return (drawn + 1) % self.vocab_size if is_wrong else drawn


class _Card:
    def __init__(self) -> None:
        model, shape = SimModel(), Shape(num_blocks=2048, chunk_tokens=4096, max_running=16)
        self._replica = Replica(shape, model=model, cost=_LargeCost())
        clock, cost = self._replica.clock, _SmallCost()
        self._drafts = small_model(model, clock, num_blocks=2048, max_step_tokens=8192, cost=cost)
        self._drafts.chunk = 2048
        self._replica.propose(DraftProposer(None, self._drafts))
        self._names = count()

    def serve(self, share: float, num_sequences: int, sampling: Sampling) -> float:
        """Serve so many new requests at once. Return the speed until the first answer ends: 1 without drafts."""
        scheduler, loop, clock = self._replica.scheduler, self._replica.loop, self._replica.clock
        self._drafts._engine.model = _RatedModel(share=share)  # type: ignore[attr-defined]
        for name in [next(self._names) for _ in range(num_sequences)]:
            prompt = tuple((name * 7919 + 31 * position**2) % 97 for position in range(_PROMPT))
            request = Request(f"r{name}", BARE, prompt, _ANSWER, sampling=sampling, seed=name, draft_window=_WINDOW)
            scheduler.submit(request)
        began, seconds, tokens, is_ended = clock.now(), 0.0, 0, False
        while (step := loop.run_once()) is not None:
            events = scheduler.take_events()
            if step.mode == "prefill":
                began = clock.now()
            elif not is_ended:
                tokens += sum(len(each.tokens) for each in events if isinstance(each, Emitted))
                seconds = clock.now() - began
            is_ended = is_ended or any(isinstance(each, Finished) for each in events)
        return tokens / seconds / (num_sequences / _PLAIN[num_sequences] * 1e3)


WARM = Sampling(temperature=1.0)


class Phase(NamedTuple):
    """Answers of one kind, one after the other or so many at once."""

    share: float
    num_sequences: int
    least: float  # the speed of all but the first, which may be spent on finding the window
    sampling: Sampling = GREEDY


PHASES = [
    Phase(0.5, 1, 1.0), Phase(0.8, 4, 1.5), Phase(0.95, 16, 1.6), Phase(0.5, 16, 0.97), Phase(0.2, 1, 0.97),
    Phase(0.95, 4, 2.2), Phase(0.2, 4, 0.97), Phase(0.8, 16, 1.2), Phase(0.2, 16, 0.97), Phase(0.95, 1, 2.4, WARM),
]  # fmt: skip


def test_windows_are_found_whatever_was_guessed_before() -> None:
    card = _Card()
    for phase in PHASES:
        first, *others = [card.serve(phase.share, phase.num_sequences, phase.sampling) for _ in range(4)]
        assert first > 0.88, phase
        assert min(others) > phase.least, phase
