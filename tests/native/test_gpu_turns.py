"""Guesses drawn in turn, without waiting for the one before, are those that a draft model draws one by one; and drafts
wait for a step that has begun."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from kvpool import BlockPool
from octet.clock import ManualClock
from octet.identity import Lane
from specialist.adapters.adapter import Adapter
from specialist.engines.native import gpu_engine
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_engine import GpuEngine
from specialist.ops.reference.sampling import uniform
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request, Sampling
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import Emitted, Finished, FixedBudget, Step
from tests.laws.oracle import ModelProposer
from tests.native.every_third import EveryThird
from tests.native.greedy_replica import BARE, ask
from tests.native.test_gpu_engine import _SHAPED, _WARM, VOCAB, Found, Memory, expected

NOTHING: Any = SimpleNamespace()


class FlatMemory(Memory):
    """As a decoder that runs a small step as a graph: what it draws stays on the device."""

    def launch_batch(
        self,
        batch: StepBatch,
        stacks: Sequence[Sequence[Adapter]],
        temperatures: Sequence[float],
        uniforms: Sequence[float],
    ) -> tuple[Tensor, Found]:
        logits, found = super().launch_batch(batch, stacks, temperatures, uniforms)
        if len(found.tokens) > self.most_rows:
            return logits, found
        self.drawn[: len(found.tokens)] = found.tokens
        return logits, Found(found.tokens, stays=True)


class ErringMemory(FlatMemory):
    """The same model, but for one context in three."""

    def launch(self, columns: Any) -> Found:
        found = super().launch(columns)
        wrong = [
            (token + (position % 3 == 0)) % VOCAB
            for token, position in zip(found.tokens, columns.positions, strict=True)
        ]
        self.drawn[: len(wrong)] = wrong
        return Found(wrong)


class StrictProposer(ModelProposer):
    """Lets the scheduler count what fails."""

    def _guesses(self, limits: Mapping[Tracked, int]) -> dict[Tracked, tuple[int, ...]]:
        assert self.model is not None
        model = self.model.model
        model.read(list(limits), 3)
        guesses = model.guess({seq: limit for seq, limit in limits.items() if model.num_unread(seq) < 6})
        for seq in guesses:
            seq.draft_source = "model"
        return guesses


class Turns:
    """A replica with a draft model, both on decoders that stand for a GPU."""

    def __init__(
        self,
        memory: type[Memory] = FlatMemory,
        engine: type[GpuEngine] = GpuEngine,
        num_blocks: int = 200,
        **asked: Any,
    ) -> None:
        self.clock = ManualClock()
        size = asked.pop("block_size", 4)
        small, own = memory(num_blocks, size), BlockPool(num_blocks, size)
        self.small = engine(small, NOTHING, NOTHING)
        self.drafts = DraftModel(
            self.small, own, Lane("draft", BARE.revision), self.clock, max_step_tokens=64, context=10**6,
            in_turn=self.small,
        )  # fmt: skip
        self.steps: list[Step] = []
        self.engine = GpuEngine(FlatMemory(200, size), NOTHING, NOTHING)
        self.scheduler = Scheduler(
            BlockPool(200, size), SchedulerConfig(BARE, max_step_tokens=64, runs_ahead=True, **asked), self.clock,
            budget=FixedBudget(64), proposer=StrictProposer(None, self.drafts),
        )  # fmt: skip

    def run(self, requests: Sequence[Request]) -> dict[str, Finished]:
        for request in requests:
            self.scheduler.submit(request)
        loop, said = StepLoop(self.scheduler, self.engine), dict.fromkeys((each.request_id for each in requests), ())
        ends: dict[str, Finished] = {}
        while (step := loop.run_once()) is not None:
            self.steps.append(step)
            self.drafts.pool.check()
            for event in self.scheduler.take_events():
                if isinstance(event, Emitted):
                    said[event.request_id] += event.tokens  # type: ignore[assignment]
                elif isinstance(event, Finished):
                    ends[event.request_id] = event
        assert said == {each.request_id: expected(each) for each in requests}
        assert self.scheduler.rows.num_failed_proposals == 0
        assert not self.drafts.sequences
        return ends


def requests(seed: int, kinds: Sequence[Sampling]) -> list[Request]:
    rng = Random(seed)
    made = [
        ask(f"r{index}", [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))], rng.randrange(1, 30))
        for index in range(rng.randrange(1, 9))
    ]
    return [
        replace(
            each, seed=index, sampling=rng.choice(kinds), draft_window=rng.choice([0, 1, 3, 5, 9]),
            guide=EveryThird(VOCAB) if rng.random() < 0.15 else None,
            stop_ids=frozenset(rng.sample(range(VOCAB), rng.choice([0, 0, 5]))),
        )
        for index, each in enumerate(made)
    ]  # fmt: skip


def check(seed: int, engine: type[GpuEngine] = GpuEngine) -> None:
    rng = Random(seed)
    turns = Turns(rng.choice([Memory, FlatMemory]), engine, block_size=rng.choice([1, 2, 4]))
    ends = turns.run(requests(seed, (Sampling(), _WARM, *_SHAPED)))
    for end in ends.values():
        counts = [count for count in end.drafts if count.source == "model"]
        # An answer may end before the last guesses are checked.
        assert all(count.num_drafted - count.num_accepted < 10 for count in counts), f"seed {seed}: {end}"
        if end.reason == "length":
            assert all(count.num_accepted == count.num_drafted for count in counts), f"seed {seed}: {end}"


def test_the_same_model_guesses_every_token() -> None:
    """Greedy or drawn, with penalties and filters: the draft model draws what the model will, with the same noise."""
    for seed in range(120):
        check(seed)


def test_a_model_that_errs_changes_no_answer() -> None:
    drafted = accepted = 0
    for seed in range(60):
        turns = Turns(ErringMemory, block_size=Random(seed).choice([1, 2, 4]))
        ends = turns.run(requests(seed, (Sampling(), _WARM)))
        drafted += sum(end.num_drafted for end in ends.values())
        accepted += sum(end.num_accepted for end in ends.values())
    assert 0.1 < accepted / drafted < 0.9


def test_a_small_memory_and_one_block_a_token() -> None:
    for seed in range(40):
        Turns(FlatMemory, num_blocks=Random(seed).choice([3, 8, 20])).run(requests(seed, (Sampling(), _WARM)))


class FeedsOtherRows(GpuEngine):
    def _launch(self, rows: Any, sources: Any) -> Any:
        return super()._launch(rows, sources[::-1])


class FeedsTheFirstStepAgain(GpuEngine):
    def draw_in_turn(self, step: Any, counts: Any) -> Any:
        first = None
        for drawn in super().draw_in_turn(step, counts):
            first = first or drawn
            yield first[: len(drawn)]


class DrawsForAnotherPosition(GpuEngine):
    def _launch(self, rows: Any, sources: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_engine, "uniform", lambda seed, position: uniform(seed, position + 1))
            return super()._launch(rows, sources)


class ComputesOnePlaceTwice(GpuEngine):
    def _launch(self, rows: Any, sources: Any) -> Any:
        starts = [start - (source >= 0) for start, source in zip(rows.starts, sources, strict=True)]
        return super()._launch(rows._replace(starts=tuple(starts)), sources)


@pytest.mark.parametrize(
    "planted", [FeedsOtherRows, FeedsTheFirstStepAgain, DrawsForAnotherPosition, ComputesOnePlaceTwice]
)
def test_a_planted_bug_is_caught(planted: type[GpuEngine]) -> None:
    def fails(seed: int) -> bool:
        try:
            check(seed, planted)
        except (AssertionError, RuntimeError):
            return True
        return False

    assert any(fails(seed) for seed in range(50))


def test_no_more_steps_are_launched_than_a_decoder_has_buffers_for() -> None:
    """Four: what a launch has drawn must be read before the fourth one after it."""
    turns = Turns()
    gpu: Any = turns.small._gpu
    launch, unread, most = gpu.launch, [0], [0]

    def counted(columns: Any) -> Any:
        found = launch(columns)
        unread[0] += 1
        most[0] = max(most[0], unread[0])

        def wait() -> Any:
            unread[0] -= 1
            return found.wait()

        return SimpleNamespace(wait=wait, stays=True)

    gpu.launch = counted
    turns.run([replace(ask("r", (1, 2, 3), 40), draft_window=12)])
    assert (most[0], unread[0]) == (3, 0)


class Wants(DraftProposer):
    """Proposes one token whenever it may, and otherwise wants to at some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def wants(self, limits: Mapping[Tracked, int], num_rows: int, most: int) -> bool:
        self.asked.append("wants")
        return len(self.asked) % 5 == 0

    def propose(self, limits: Mapping[Tracked, int], num_rows: int, most: int) -> dict[Tracked, tuple[int, ...]]:
        self.asked.append("propose")
        return dict.fromkeys(limits, (0,)) if len(self.asked) % 3 else {}


def test_drafts_wait_for_the_step_that_has_begun() -> None:
    """No step is computed in vain: whenever one was launched ahead, it is the next one."""
    proposer = Wants()
    scheduler = Scheduler(
        BlockPool(200, 4),
        SchedulerConfig(BARE, runs_ahead=True),
        ManualClock(),
        budget=FixedBudget(64),
        proposer=proposer,
    )
    engine = GpuEngine(FlatMemory(200, 4), NOTHING, NOTHING)
    scheduler.submit(replace(ask("r", (1, 2, 3), 60), draft_window=4))
    loop, modes = StepLoop(scheduler, engine), []
    while True:
        was_begun = engine._ahead is not None
        step = loop.run_once()
        if step is None:
            break
        assert not was_begun or step.mode == "decode"
        modes.append(step.mode)
    assert modes.count("spec_verify") > 3 and engine.num_hits > 10
    assert {"wants", "propose"} == set(proposer.asked)


def test_without_such_an_engine_drafts_wait_for_nothing() -> None:
    proposer = Wants()
    scheduler = Scheduler(BlockPool(200, 4), SchedulerConfig(BARE), ManualClock(), proposer=proposer)
    scheduler.submit(replace(ask("r", (1, 2, 3), 40), draft_window=4))
    loop = StepLoop(scheduler, GpuEngine(FlatMemory(200, 4), NOTHING, NOTHING))
    while loop.run_once() is not None:
        pass
    assert set(proposer.asked) == {"propose"}
