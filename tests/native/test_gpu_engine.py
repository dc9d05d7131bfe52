"""Decode steps that run ahead of the scheduler change no token, whatever it decides in between."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random
from threading import Thread, get_ident
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvpool import BlockCopy, BlockPool, HostCache
from octet.clock import ManualClock
from specialist.adapters.adapter import Adapter
from specialist.engines.native import gpu_engine
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_engine import DecodeRow, DecodeRows, GpuEngine
from specialist.engines.native.shaped_draw import Shaped, Slots, can_shape, shaped_of
from specialist.ops.reference.sampling import uniform
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import GuideExhausted, Request, Sampling
from specialist.scheduling.sequence import Sequence as Tracked
from specialist.scheduling.step import Emitted, Finished, FixedBudget
from tests.native.every_third import EveryThird
from tests.native.greedy_replica import BARE, ask

VOCAB = 50
_WARM, _WITH_LOGPROBS = Sampling(temperature=1.0), Sampling(num_logprobs=0)
_SHAPED = Sampling(temperature=1.0, top_k=3), Sampling(repetition_penalty=1.2), Sampling(1.0, repetition_penalty=1.1)


def most_likely(context: Sequence[int], adapters: Sequence[Any] = ()) -> int:
    return int.from_bytes(sha256(repr([*context, *adapters]).encode()).digest()[:4]) % VOCAB


def first_allowed(token: int, mask: NDArray[np.uint8] | None) -> int:
    """Stands for a draw from what a mask allows."""
    fits = np.ones(VOCAB) if mask is None else np.unpackbits(mask, bitorder="little")
    return next(each % VOCAB for each in range(token, token + VOCAB) if fits[each % VOCAB])


class Memory:
    """Stands in for a decoder on a GPU: a slot holds a token, and the next token follows from those in the context."""

    most_rows = 6
    vocab_size = VOCAB

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size, self.device = num_blocks, block_size, torch.device("cpu")
        self.slots = [-1] * ((num_blocks + self.most_rows) * block_size)
        self.drawn = [0] * self.most_rows
        self.inputs = [0] * self.most_rows  # of the last launch
        self.best = [0] * self.most_rows
        self.counts: dict[int, list[int]] = {}
        self.places: dict[int, list[int]] = {}
        self.num_restored = 0
        self._slots = Slots(self.most_rows)

    def spill(self, copies: Sequence[BlockCopy]) -> None:
        for block_id, place in copies:
            self.places[place] = self.slots[block_id * self.block_size : (block_id + 1) * self.block_size]

    def restore(self, copies: Sequence[BlockCopy]) -> None:
        self.num_restored += len(copies)
        for block_id, place in copies:
            self.slots[block_id * self.block_size : (block_id + 1) * self.block_size] = self.places[place]

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // self.block_size] * self.block_size + position % self.block_size

    def _context(self, blocks: Sequence[int], length: int) -> list[int]:
        return [self.slots[self._slot(blocks, position)] for position in range(length)]

    def launch(self, columns: DecodeRows) -> "Found":
        rows = split(columns)
        tokens = [row.token if row.source < 0 else self.drawn[row.source] for row in rows]
        for row, token in zip(rows, tokens, strict=True):
            self.slots[self._slot(row.blocks, row.position)] = token
        self.inputs = tokens
        self.best = [most_likely(self._context(row.blocks, row.position + 1), row.adapters) for row in rows]
        drawn = [_drawn(best, row.temperature, row.uniform) for best, row in zip(self.best, rows, strict=True)]
        self.drawn[: len(rows)] = drawn
        return self._draw_changed([(row.shaped, row.position, row.source < 0) for row in rows])

    def redraw(self, rows: Sequence[Shaped | None]) -> "Found":
        return self._draw_changed([(row, 0 if row is None else len(row.tokens) - 1, True) for row in rows])

    def _draw_changed(self, rows: Sequence[tuple[Shaped | None, int, bool]]) -> "Found":
        placed, new = self._slots.place(rows)
        self.counts |= {slot: list(shaped.tokens[:length]) for slot, shaped, length in new}
        for index, each in enumerate(placed):
            if each.adds:
                self.counts[each.slot].append(self.inputs[index])
            if each.shaped is not None:
                best = self.best[index] + changed_by(each.shaped.sampling, self.counts.get(each.slot, ()))
                token = _drawn(best, each.shaped.sampling.temperature, each.shaped.uniform)
                self.drawn[index] = first_allowed(token, each.shaped.mask)
        return Found(self.drawn[: len(rows)])

    def can_draw(self, sampling: Sampling, stop_ids: frozenset[int]) -> bool:
        return can_shape(sampling, stop_ids, VOCAB)

    def draw_shaped(self, logits: Tensor, rows: Sequence[Shaped]) -> tuple[list[int], list[float]]:
        best = [
            token + changed_by(row.sampling, row.tokens)
            for token, row in zip(logits.argmax(1).tolist(), rows, strict=True)
        ]
        drawn = zip(best, (row.sampling.temperature for row in rows), (row.uniform for row in rows), strict=True)
        tokens = [first_allowed(_drawn(*each), row.mask) for each, row in zip(drawn, rows, strict=True)]
        return tokens, [1.0] * len(rows)

    def forget(self) -> None:
        self._slots.forget()

    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        raise NotImplementedError

    def launch_batch(
        self,
        batch: StepBatch,
        stacks: Sequence[Sequence[Adapter]],
        temperatures: Sequence[float],
        uniforms: Sequence[float],
    ) -> tuple[Tensor, "Found"]:
        for slot, token in zip(batch.slots.tolist(), batch.tokens.tolist(), strict=True):
            self.slots[slot] = token
        logits = torch.zeros(len(batch.outputs), VOCAB)
        rows = np.searchsorted(batch.query_start.numpy(), batch.outputs.numpy(), side="right") - 1
        for index, (row, token) in enumerate(zip(rows.tolist(), batch.outputs.tolist(), strict=True)):
            blocks = batch.block_tables[row].tolist()
            known = self._context(blocks, int(batch.positions[token]) + 1)
            logits[index, most_likely(known, stacks[row])] = 1.0
        self.drawn, self.best = [VOCAB - 1] * self.most_rows, [VOCAB - 1] * self.most_rows  # this step uses them, too
        drawn = zip(logits.argmax(1).tolist(), temperatures, uniforms, strict=True)
        return logits, Found([_drawn(*each) for each in drawn])

    def enter_thread(self) -> None: ...

    def spare_block(self, row: int) -> int:
        return self.num_blocks + row

    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        for source, target in moves:
            self.slots[target] = self.slots[source]

    def zero(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.slots[slot] = -1

    def add_hidden(self, start: int, stop: int, total: NDArray[np.float64]) -> None:
        raise NotImplementedError


def split(rows: DecodeRows) -> list[DecodeRow]:
    return [DecodeRow(*each) for each in zip(*rows, strict=True)]


class Found(NamedTuple):
    tokens: list[int]
    stays: bool = False

    def wait(self) -> tuple[list[int], list[float]]:
        return self.tokens, [1.0] * len(self.tokens)


def _drawn(best: int, temperature: float, drawn: float) -> int:
    return (best + (int(drawn * VOCAB) if temperature else 0)) % VOCAB


def changed_by(sampling: Sampling, tokens: Iterable[int]) -> int:
    """Stands for filters and penalties: every counted token matters."""
    penalty = sampling.repetition_penalty != 1.0
    return sampling.top_k + penalty * sum((i + 1) * token for i, token in enumerate(tokens)) % 7


def expected(request: Request) -> tuple[int, ...]:
    text = list(request.prompt)
    for _ in range(request.max_tokens):
        heat = request.sampling.temperature
        best = most_likely(text, request.lane.adapters) + changed_by(request.sampling, text)
        token = _drawn(best, heat, uniform(request.seed, len(text)))
        if request.guide is not None:
            bits = request.guide.allowed(text[len(request.prompt) :])
            token = first_allowed(token, np.frombuffer(bits, np.uint8) if bits is not None else None)
        if token in request.stop_ids:
            break
        text.append(token)
    return tuple(text[len(request.prompt) :])


class PartlyWrong:
    """Guesses the next tokens of answers, with every fourth one wrong."""

    def propose(self, limits: Mapping[Tracked, int], num_rows: int, most: int) -> dict[Tracked, tuple[int, ...]]:
        return {seq: self._guess(seq, limit) for seq, limit in limits.items()}

    def _guess(self, seq: Tracked, limit: int) -> tuple[int, ...]:
        known = seq.num_tokens - len(seq.request.prompt)
        coming = enumerate(expected(seq.request)[known : known + limit], known)
        return tuple(token if i % 4 else (token + 1) % VOCAB for i, token in coming)

    def wants(self, limits: Mapping[Tracked, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Tracked) -> None: ...


def run(seed: int, engine_class: type[GpuEngine] = GpuEngine) -> GpuEngine:
    """Serve random requests, of which some come late, are cancelled or preempted. Check every token and every block."""
    rng = Random(seed)
    memory = Memory(rng.choice([14, 20, 60]), rng.choice([1, 2, 4]))
    capacity = (0, 2, 30)[seed % 3]
    host = HostCache(capacity, memory) if capacity else None
    pool = BlockPool(memory.num_blocks, memory.block_size, host=host)
    chunk = rng.choice([1, 3, 8, 32])
    config = SchedulerConfig(BARE, max_running=rng.choice([1, 3, 8]), max_step_tokens=chunk, mixes_adapters=True)
    proposer = rng.choice([None, PartlyWrong()])
    scheduler = Scheduler(pool, config, ManualClock(), budget=FixedBudget(chunk), proposer=proposer)
    store: Any = SimpleNamespace(get=lambda digest: digest)  # an adapter stands for itself
    nothing: Any = SimpleNamespace()
    engine = engine_class(memory, store, nothing)
    loop = StepLoop(scheduler, engine)
    room = pool.num_slots
    stem = tuple(rng.randrange(VOCAB) for _ in range(room))
    requests: dict[str, Request] = {}
    for index in range(rng.randrange(1, 12)):
        length = rng.choice([1, rng.randrange(1, max(2, room // 3))])
        own = tuple(rng.randrange(VOCAB) for _ in range(length))
        most = rng.choice([1, rng.randrange(1, max(2, room // 3))])
        adapters = rng.choice([(), (), ("a" * 64,), ("b" * 64, "a" * 64)])
        request = ask(f"r{index}", (stem[: length // 2] + own)[:length], most, adapters)
        stops = frozenset(rng.sample(range(VOCAB), rng.choice([0, 0, 4])))
        sampling = rng.choice([request.sampling, request.sampling, _WARM, _WITH_LOGPROBS, *_SHAPED])
        guide = EveryThird(VOCAB) if sampling is not _WITH_LOGPROBS and rng.random() < 0.3 else None
        request = replace(request, seed=index, stop_ids=stops, sampling=sampling, priority=rng.choice([0, 0, 1]))
        request = replace(request, guide=guide, draft_window=rng.choice([0, 0, 3]))
        requests[request.request_id] = request
    if host is not None:  # most come again, so that their prefixes do
        requests |= {f"{name}again": replace(each, request_id=f"{name}again") for name, each in requests.items()}
    arrivals = rng.choice([0.4, 0.05])
    coming, ended = list(requests.values()), set()
    said: dict[str, tuple[int, ...]] = dict.fromkeys(requests, ())
    while True:
        while coming and (not scheduler.ledger.live or rng.random() < arrivals):
            scheduler.submit(coming.pop())
        if rng.random() < 0.04:
            name = rng.choice(sorted(requests))
            if scheduler.end(name, "cancelled"):
                ended.add(name)
        stepped = loop.run_once()
        pool.check()
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                said[event.request_id] += event.tokens
            assert not isinstance(event, Finished) or event.reason != "error", event
        if stepped is None and not coming and not scheduler.ledger.live:
            break
    for name, request in requests.items():
        whole = expected(request)
        assert said[name] == (whole[: len(said[name])] if name in ended else whole), f"seed {seed}, {name}"
    assert pool.num_free == pool.capacity
    return engine


def test_steps_that_run_ahead_change_no_token() -> None:
    engines = [run(seed) for seed in range(200)]
    assert sum(engine.num_hits for engine in engines) > sum(engine.num_misses for engine in engines)
    assert sum(engine._gpu.num_restored for engine in engines if isinstance(engine._gpu, Memory)) > 100


def test_rows_with_guides_are_launched_ahead() -> None:
    memory, nothing = Memory(60, 4), SimpleNamespace()
    scheduler = Scheduler(BlockPool(60, 4), SchedulerConfig(BARE), ManualClock(), budget=FixedBudget(64))
    engine = GpuEngine(memory, nothing, nothing)  # type: ignore[arg-type]
    requests = [replace(ask(f"r{i}", (1, 2, i), 20), guide=EveryThird(VOCAB) if i else None) for i in range(3)]
    for request in requests:
        scheduler.submit(request)
    loop = StepLoop(scheduler, engine)
    while loop.run_once() is not None:
        pass
    assert (engine.num_hits, engine.num_misses) == (17, 2)
    said: dict[str, tuple[int, ...]] = dict.fromkeys((request.request_id for request in requests), ())
    for event in scheduler.take_events():
        if isinstance(event, Emitted):
            said[event.request_id] += event.tokens
    assert said == {request.request_id: expected(request) for request in requests}


class Exhausted(EveryThird):
    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        if len(generated) == 5:
            raise GuideExhausted("nothing fits")
        return super().allowed(generated, guessed)


def test_a_row_whose_guide_fails_fails_alone() -> None:
    memory, nothing = Memory(60, 4), SimpleNamespace()
    scheduler = Scheduler(BlockPool(60, 4), SchedulerConfig(BARE), ManualClock(), budget=FixedBudget(64))
    loop = StepLoop(scheduler, GpuEngine(memory, nothing, nothing))  # type: ignore[arg-type]
    guides = {"bad": Exhausted(VOCAB), "good": EveryThird(VOCAB), "free": None}
    requests = [replace(ask(name, (1, 2), 12), guide=guide) for name, guide in guides.items()]
    for request in requests:
        scheduler.submit(request)
    while loop.run_once() is not None:
        pass
    ended = {event.request_id: event for event in scheduler.take_events() if isinstance(event, Finished)}
    assert {name: event.reason for name, event in ended.items()} == {"bad": "error", "good": "length", "free": "length"}
    assert "nothing fits" in ended["bad"].detail


def test_a_prediction_with_another_token_than_the_scheduler_knows_is_not_taken() -> None:
    memory, nothing = Memory(60, 4), SimpleNamespace()
    scheduler = Scheduler(BlockPool(60, 4), SchedulerConfig(BARE), ManualClock(), budget=FixedBudget(64))
    engine = GpuEngine(memory, nothing, nothing)  # type: ignore[arg-type]
    loop = StepLoop(scheduler, engine)
    scheduler.submit(ask("r", (1, 2), 20))
    for _ in range(4):
        loop.run_once()
    step = scheduler.assemble_step()
    assert step is not None and engine._ahead is not None
    (row,) = step.rows
    other = (row.tokens[0] + 1) % VOCAB
    misses = engine.num_misses
    engine.run(replace(step, rows=(row._replace(tokens=(other,)),)))
    assert engine.num_misses == misses + 1
    assert memory.slots[memory._slot(row.table.block_ids, row.start)] == other


def test_a_thread_uses_the_decoders_gpu_from_its_first_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, nothing, entered = Memory(60, 4), SimpleNamespace(), list[int]()
    monkeypatch.setattr(memory, "enter_thread", lambda: entered.append(get_ident()))
    scheduler = Scheduler(BlockPool(60, 4), SchedulerConfig(BARE), ManualClock(), budget=FixedBudget(64))
    loop = StepLoop(scheduler, GpuEngine(memory, nothing, nothing))  # type: ignore[arg-type]
    scheduler.submit(ask("r", (1, 2), 20))
    for _ in range(5):
        loop.run_once()
    other = Thread(target=lambda: [loop.run_once() for _ in range(5)])
    other.start()
    other.join()
    assert entered == [get_ident(), other.ident]


class TakesAnyPrediction(GpuEngine):
    def _is_predicted(self, rows: Any, ahead: Any) -> bool:
        return all(seq in ahead.places for seq in rows.sequences)


class TakesTokensOfOtherRows(GpuEngine):
    def _take(self, rows: Any) -> Any:
        launched = super()._take(rows)
        others = sorted(launched.places, key=lambda seq: seq.index)
        return launched._replace(places=dict(zip(others, launched.places.values(), strict=True)))


class LeavesSpareBlocks(GpuEngine):
    def __init__(self, decoder: Any, adapters: Any, slots: Any) -> None:
        super().__init__(decoder, adapters, slots)
        decoder.move_slots = lambda moves: None


class FeedsTokensOfOtherRows(GpuEngine):
    def _launch_ahead(self, rows: Any, launched: Any) -> Any:
        places = {seq: index for index, seq in enumerate(rows.sequences)}
        return super()._launch_ahead(rows, launched._replace(places=places))


class DrawsForAnotherPosition(GpuEngine):
    def _launch(self, rows: Any, sources: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_engine, "uniform", lambda seed, position: uniform(seed, position - 1))
            return super()._launch(rows, sources)


class UsesAdaptersOfOtherRows(GpuEngine):
    def _launch(self, rows: Any, sources: Any) -> Any:
        first = self._stack(rows.sequences[0].request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_stack", lambda request: first)
            return super()._launch(rows, sources)


class UsesCountsOfOtherRows(GpuEngine):
    """Gives all sequences one slot."""

    def _launch(self, rows: Any, sources: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                gpu_engine, "shaped_of", lambda request, drawn, tokens, _: shaped_of(request, drawn, tokens, 0)
            )
            return super()._launch(rows, sources)


class IgnoresGuides(GpuEngine):
    def _follow_guides(self, rows: Any, launched: Any) -> Any:
        return launched.drawn, {}


class UsesMasksOfOtherRows(GpuEngine):
    def _follow_guides(self, rows: Any, launched: Any) -> Any:
        drawn: Any = self._gpu.redraw
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._gpu, "redraw", lambda again: drawn(again[::-1]))
            return super()._follow_guides(rows, launched)


class DrawsAgainFromLogitsOfAnotherStep(GpuEngine):
    def run(self, step: Any) -> Any:
        kept, is_decode = self._ahead, self._plain_decode(step) is not None
        done = super().run(step)
        if not is_decode:
            self._ahead = kept
        return done


class DrawsDraftsForAnotherPosition(GpuEngine):
    def _draw(self, step: Any, batch: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_engine, "uniform", lambda seed, position: uniform(seed, position + 1))
            return super()._draw(step, batch)


PLANTED = [
    IgnoresGuides,
    UsesMasksOfOtherRows,
    DrawsAgainFromLogitsOfAnotherStep,
    DrawsDraftsForAnotherPosition,
    UsesCountsOfOtherRows,
    TakesAnyPrediction,
    TakesTokensOfOtherRows,
    LeavesSpareBlocks,
    FeedsTokensOfOtherRows,
    DrawsForAnotherPosition,
    UsesAdaptersOfOtherRows,
]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: type[GpuEngine]) -> None:
    def fails(seed: int) -> bool:
        try:
            run(seed, planted)
        except (AssertionError, KeyError, IndexError):
            return True
        return False

    assert any(fails(seed) for seed in range(300))


def test_a_row_whose_logits_are_not_finite_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(40, 4)
    scheduler = Scheduler(BlockPool(40, 4), SchedulerConfig(BARE), ManualClock(), budget=FixedBudget(64))
    nothing: Any = SimpleNamespace()
    loop = StepLoop(scheduler, GpuEngine(memory, nothing, nothing))
    launch: Callable[[DecodeRows], Found] = memory.launch

    def bad(columns: DecodeRows) -> Any:
        found, rows = launch(columns), split(columns)
        peaks = [float("inf") if row.blocks[0] == blocks[0] and row.position > 8 else 1.0 for row in rows]
        return SimpleNamespace(wait=lambda: (found.tokens, peaks))

    monkeypatch.setattr(memory, "launch", bad)
    requests = [ask("bad", (1, 2, 3), 12), ask("good", (4, 5), 12)]
    for request in requests:
        scheduler.submit(request)
    loop.run_once()
    blocks = scheduler.ledger.live["bad"].running_table().block_ids
    while loop.run_once() is not None:
        pass
    events = scheduler.take_events()
    reasons = {event.request_id: event.reason for event in events if isinstance(event, Finished)}
    assert reasons == {"bad": "error", "good": "length"}
