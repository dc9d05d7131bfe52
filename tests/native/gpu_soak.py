"""Random load over the scheduler and the engine of a device, for as long as wanted: `python -m tests.native.gpu_soak`.

Requests of all kinds come, end, are preempted, suspended, cancelled or late, in a pool that is too small for them. Each
ends exactly once and as long as asked, the pool is consistent, and whenever the load pauses, every block is free and a
sample of the answers is the same as alone. At the end, the memory of the device is as after the first minute.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.peers.model_files import write_adapter
from octet.clock import ManualClock
from specialist.adapters.adapter import matrix_shapes
from specialist.engines.base import Completion, Engine
from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, Vocabulary, expected_shapes
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import GREEDY, Request, Sampling
from specialist.scheduling.step import Admitted, Emitted, Event, Finished, Preempted, Rollback, Step
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings

BLOCK = 16
WARM_SECONDS = 60.0
SLACK = 64 << 20
"""Bytes by which the device's memory may grow after the first minute: what an allocator keeps in fragments."""
SETTINGS = (
    *(GREEDY,) * 4,
    Sampling(0.8),
    Sampling(0.7, top_k=40, top_p=0.9, min_p=0.01),
    Sampling(0.6, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, logit_bias=((5, 2.0),)),
    Sampling(0.9, typical_p=0.9),
    Sampling(num_logprobs=2),
    Sampling(repetition_penalty=1.2, min_tokens=4),
)


@dataclass(frozen=True, slots=True)
class SoakSize:
    hidden: int
    inner: int
    heads: int
    head_dim: int
    num_blocks: int
    most_prompt: int
    most_answer: int
    most_running: int
    num_adapters: int
    phase: int = 2_000  # steps of load between two pauses
    checked_every: int = 16  # steps
    num_compared: int = 6  # answers of a phase


LARGE = SoakSize(1024, 3072, 16, 128, 160, 700, 200, 32, 20)
SPILLED = 1 << 22  # bytes of host memory for evicted blocks
SMALL = SoakSize(64, 96, 4, 16, 26, 90, 24, 6, 4, phase=60, checked_every=1, num_compared=4)


class OnlyEven:
    """A structure that only even tokens follow."""

    def __init__(self, vocab_size: int) -> None:
        self._mask = bytes([0b01010101] * (vocab_size // 8))

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        return None if any(token % 2 for token in guessed) else self._mask

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        return token % 2 == 0

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        return False


def make_checkpoint(size: SoakSize, vocab_size: int = 4096) -> Checkpoint:
    """Return a model of the shape of Qwen3 whose answers do not repeat soon."""
    config = ModelConfig(
        "qwen3", vocab_size, size.hidden, size.inner, 2, size.heads, size.heads // 2, size.head_dim, 1e-6, Rope(),
        context=2048, tied_head=True, qk_norm=True,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in expected_shapes(config):
        if len(shape) == 1:
            weights[name] = 0.5 + torch.rand(shape, generator=generator)
        else:
            spread = 0.5 if name == "embed" else 1.4 * shape[1] ** -0.5
            weights[name] = torch.randn(shape, generator=generator) * spread
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary(tokenizer, {}, None, frozenset(), None)
    return Checkpoint(config, vocabulary, "0" * 64, weights)


def open_replica(size: SoakSize, device: str, clock: ManualClock) -> AssembledReplica:
    on_gpu = device != "cpu"
    settings = ReplicaSettings(
        name="soak", device=device, dtype="bfloat16" if on_gpu else "float32", kernel="auto" if on_gpu else "float32",
        num_blocks=size.num_blocks, block_size=BLOCK, max_running=size.most_running, draft_window=4, threads=1,
        spill_bytes=SPILLED,
    )  # fmt: skip
    return replica_from_checkpoint(make_checkpoint(size), "soak", settings, clock)


class TickingEngine:
    """Lets a step take a random time, by which the scheduler chooses other chunks and deadlines pass."""

    def __init__(self, engine: Engine, clock: ManualClock, rng: Random) -> None:
        self.engine, self._clock, self._rng = engine, clock, rng

    def run(self, step: Step) -> Iterable[Completion]:
        self._clock.sleep(self._rng.choice((0.001, 0.01, 0.04, 0.3)))
        return self.engine.run(step)

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        self.engine.discard(rollbacks)


@dataclass(slots=True)
class Answer:
    request: Request
    tokens: list[int] = field(default_factory=list)
    reason: str = ""


class Soak:
    def __init__(self, replica: AssembledReplica, size: SoakSize, clock: ManualClock, seed: int) -> None:
        self.replica, self.size, self.clock, self.rng = replica, size, clock, Random(seed)
        self.scheduler, self.pool = replica.scheduler, replica.scheduler.pool
        self.loop = StepLoop(self.scheduler, TickingEngine(replica.engine, clock, self.rng))
        self.live: dict[str, Answer] = {}
        self.kept: list[Answer] = []  # to be compared
        self.counts: Counter[str] = Counter()
        self._vocab_size = replica.codec.vocab_size
        self._stems = [self._tokens(size.most_prompt) for _ in range(6)]
        self._folders: list[Path] = []
        self._suspended: list[str] = []

    def run(self, is_over: Callable[[int], bool], paused: Callable[[], None]) -> None:
        """Serve until the number of steps tells that it is over, and then until all requests have ended. `paused` is
        called when no request is live."""
        with ExitStack() as stack:
            self._load_adapters(Path(stack.enter_context(TemporaryDirectory(prefix="octet-soak-"))))
            steps = 0
            while not is_over(steps):
                stop = steps + self.size.phase
                rate = self.rng.choice((0.05, 0.3, 1.0))
                while steps < stop and not is_over(steps):
                    self._disturb(rate)
                    self._step(steps)
                    steps += 1
                steps += self._drain()
                self._compare()
                paused()
            self.counts["steps"] = steps

    def _load_adapters(self, folder: Path) -> None:
        shapes = matrix_shapes(make_checkpoint(self.size).config)
        for index in range(self.size.num_adapters):
            self._folders.append(write_adapter(folder / str(index), shapes, index))
            self.replica.adapters.load(f"a{index}", self._folders[-1])

    def _tokens(self, length: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(self._vocab_size) for _ in range(length))

    def _disturb(self, rate: float) -> None:
        rng = self.rng
        if len(self.live) < 3 * self.size.most_running:
            while rng.random() < rate / (1 + rate):
                self._submit()
        if self.live and rng.random() < 0.02:
            self.scheduler.end(rng.choice(list(self.live)), "cancelled")
        if self.live and rng.random() < 0.01 and len(self._suspended) < 3:
            self._suspended.append(rng.choice(list(self.live)))
            self.scheduler.suspend(self._suspended[-1], "another request")
        if self._suspended and rng.random() < 0.05:
            self.scheduler.resume(self._suspended.pop())
        if rng.random() < 0.005:  # a name gets another adapter while requests use the one before
            index = rng.randrange(self.size.num_adapters)
            self.replica.adapters.load(f"a{index}", rng.choice(self._folders))

    def _submit(self) -> None:
        rng, now, size = self.rng, self.clock.now(), self.size
        length = rng.choice((1, rng.randrange(1, 20), rng.randrange(1, size.most_prompt)))
        shared = rng.choice((0, length // 2, length - 1))
        names = rng.sample(range(size.num_adapters), rng.choice((0, 0, 1, 2)))
        adapters = tuple(self.replica.adapters.resolve(f"a{index}") for index in names)
        for digest in adapters:
            self.replica.adapters.acquire(digest)
        request = Request(
            f"r{self.counts['requests']}",
            replace(self.replica.lane, adapters=adapters),
            rng.choice(self._stems)[:shared] + self._tokens(length - shared),
            rng.choice((1, rng.randrange(1, 12), rng.randrange(1, size.most_answer))),
            priority=rng.choice((0, 0, 0, 1, 2)),
            arrival=now,
            deadline=now + rng.uniform(0.05, 20) if rng.random() < 0.15 else None,
            first_deadline=now + rng.uniform(0.05, 5) if rng.random() < 0.04 else None,
            stop_ids=frozenset(rng.sample(range(self._vocab_size), 400)) if rng.random() < 0.2 else frozenset(),
            sampling=rng.choice(SETTINGS),
            seed=self.counts["requests"],
            draft_window=rng.choice((0, 0, 4)),
            tenant_salt=rng.choice((b"", b"", b"other")),
            guide=OnlyEven(self._vocab_size) if rng.random() < 0.05 else None,
        )
        self.counts["requests"] += 1
        self.live[request.request_id] = Answer(request)
        self.scheduler.submit(request)

    def _step(self, number: int) -> bool:
        stepped = self.loop.run_once()
        if stepped is None:
            self.clock.sleep(0.05)  # so that deadlines of suspended requests pass
        for event in self.scheduler.take_events():
            self._take(event)
        if number % self.size.checked_every == 0:
            self.pool.check()
        if len(self.scheduler.running) > self.size.most_running:
            raise AssertionError(f"{len(self.scheduler.running)} requests run at once")
        return stepped is not None

    def _take(self, event: Event) -> None:
        answer = self.live.get(event.request_id)
        if answer is None:
            raise AssertionError(f"{event} after the end of its request")
        if isinstance(event, Preempted):
            self.counts[f"preempted: {event.cause}"] += 1
        elif isinstance(event, Admitted):
            self.counts["prefix tokens"] += event.num_hit_tokens
        elif isinstance(event, Emitted):
            answer.tokens += event.tokens
            self.counts["tokens"] += len(event.tokens)
        elif isinstance(event, Finished):
            self._finish(answer, event)

    def _finish(self, answer: Answer, event: Finished) -> None:
        request, answer.reason = answer.request, event.reason
        del self.live[event.request_id]
        self.counts[f"ended: {event.reason}"] += 1
        self.counts["accepted drafts"] += event.num_accepted
        if event.reason == "error":
            raise AssertionError(f"{event}")
        limit = min(request.max_tokens, self.pool.num_slots - len(request.prompt))
        if len(answer.tokens) > limit or (event.reason == "length") != (len(answer.tokens) == limit):
            raise AssertionError(f"{len(answer.tokens)} tokens of {limit} at {event}")
        if answer.tokens and len(self.kept) < self.size.num_compared and self.rng.random() < 0.1:
            self.kept.append(answer)  # and keep its adapters
        else:
            self._release(request)

    def _release(self, request: Request) -> None:
        for digest in request.lane.adapters:
            self.replica.adapters.release(digest)

    def _drain(self) -> int:
        """Run until no request is live. Return the number of steps."""
        while self._suspended:
            self.scheduler.resume(self._suspended.pop())
        steps = 0
        while self.live:
            self._step(steps)
            steps += 1
            if steps > 100 * self.size.phase:
                raise AssertionError(f"these requests do not end: {sorted(self.live)}")
        self.pool.check()
        if self.pool.num_used:
            raise AssertionError(f"{self.pool.num_used} blocks are in use without requests")
        return steps

    def _compare(self) -> None:
        """Compare the kept answers with those of the same requests alone, without a cached prefix."""
        kept, self.kept = self.kept, []
        for answer in kept:
            alone = replace(
                answer.request, request_id=f"{answer.request.request_id} alone", arrival=self.clock.now(), priority=0,
                deadline=None, first_deadline=None, draft_window=0, tenant_salt=answer.request.request_id.encode(),
            )  # fmt: skip
            expected = Answer(alone)
            for digest in alone.lane.adapters:
                self.replica.adapters.acquire(digest)
            self.live[alone.request_id] = expected
            self.scheduler.submit(alone)
            self._drain()
            is_whole = answer.reason in ("length", "stop")
            if answer.tokens != (expected.tokens if is_whole else expected.tokens[: len(answer.tokens)]):
                raise AssertionError(f"{answer.request.request_id} got another answer than alone: {answer}, {expected}")
            self.counts["compared"] += 1
            self._release(answer.request)


@dataclass(slots=True)
class DeviceMemory:
    """Bytes that PyTorch holds on the device, at pauses."""

    device: str
    warm: tuple[int, int] | None = None
    last: tuple[int, int] = (0, 0)

    def note(self, *, is_warm: bool) -> None:
        if self.device == "cpu":
            return
        torch.cuda.synchronize(self.device)
        self.last = torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
        if is_warm and self.warm is None:
            self.warm = self.last

    def check(self) -> None:
        if self.warm is not None and any(now > then + SLACK for now, then in zip(self.last, self.warm, strict=True)):
            raise AssertionError(f"memory grew from {self.warm} to {self.last} bytes (allocated, reserved)")


def soak(
    device: str,
    size: SoakSize,
    *,
    seconds: float = 0.0,
    steps: int = 0,
    seed: int = 0,
    change: Callable[[AssembledReplica], object] = lambda replica: None,
) -> dict[str, Any]:
    """Serve for some seconds, or until a number of steps. Return what was counted. Raises AssertionError."""
    clock = ManualClock()
    began = time.monotonic()
    replica = open_replica(size, device, clock)
    change(replica)
    memory = DeviceMemory(device)
    running = Soak(replica, size, clock, seed)
    start = time.monotonic()

    def spent() -> float:
        return time.monotonic() - start

    def is_over(done: int) -> bool:
        return done >= steps if steps else spent() >= seconds

    running.run(is_over, lambda: memory.note(is_warm=spent() >= min(WARM_SECONDS, seconds / 10)))
    memory.check()
    pool, engine = running.pool, replica.engine
    if pool.num_free != pool.capacity or replica.adapters.num_in_use:
        raise AssertionError(
            f"{pool.num_free} of {pool.capacity} blocks are free, {replica.adapters.num_in_use} leases"
        )
    hits = {name: getattr(engine, name) for name in ("num_hits", "num_misses") if hasattr(engine, name)}
    return {
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "engine": type(engine).__name__,
        "opened_s": round(start - began, 1),
        "seconds": round(spent(), 1),
        **dict(sorted(running.counts.items())),
        **hits,
        "free_blocks": pool.num_free,
        "blocks": pool.capacity,
        "allocated_warm_and_last": [memory.warm and memory.warm[0], memory.last[0]],
        "reserved_warm_and_last": [memory.warm and memory.warm[1], memory.last[1]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    size = SMALL if options.device == "cpu" else LARGE
    try:
        print(json.dumps(soak(options.device, size, seconds=options.seconds, seed=options.seed)))
    except AssertionError as broken:
        print(json.dumps({"broken": str(broken)[:2000]}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
