"""Octet as a peer in its own bench: scheduler and engine in this process, or a specialist that is called over gRPC."""

import argparse
import asyncio
import gc
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import grpc

from bench.peers.model_files import write_adapter
from bench.peers.serve import Call, Loaded, Prompts, SteppedEngine, Stopwatch, serve
from kvpool import BlockPool
from octet import __version__
from octet.client.replica import SpecialistClient, SpecialistError
from octet.clock import SystemClock
from octet.v1 import specialist_pb2 as wire
from specialist.engines.base import Engine
from specialist.engines.native.settings import DType
from specialist.scheduling.scheduler import Scheduler, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished, Step

if TYPE_CHECKING:
    from specialist.models.checkpoint import Checkpoint
    from specialist.models.weights import Weight
    from specialist.server.replica import AssembledReplica

SERVED = "--served"  # the first argument: measure over gRPC
APART = "generate_apart"  # generate with a gRPC call for each request
_LONG_ENOUGH = 0.1  # the minimum seconds of a measurement
_GPU_RUNNING = 128  # as many requests as the bench sends
_GPU_SHARE = 0.3  # of the card's memory, so that two such engines and a peer fit
_LARGE = 8192  # rows and columns of the matrices whose product shows what the device can do
_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


class ScheduledEngine(SteppedEngine):
    def __init__(self, scheduler: Scheduler, engine: Engine) -> None:
        self.scheduler = scheduler
        self._loop = StepLoop(scheduler, engine)
        self._names = count()

    def submit(self, prompt: Sequence[int], new_tokens: int, adapter: str | None = None) -> str:
        name, lane = f"r{next(self._names)}", self.scheduler.config.lane
        own = lane if adapter is None else replace(lane, adapters=(adapter,))
        self.scheduler.submit(Request(name, own, tuple(prompt), new_tokens))
        return name

    def step(self) -> list[tuple[str, Sequence[int]]] | None:
        step = self._loop.run_once()
        return None if step is None else self.finish(step)

    def finish(self, step: Step) -> list[tuple[str, Sequence[int]]]:
        """Return the tokens of a step that has run."""
        emitted: list[tuple[str, Sequence[int]]] = []
        for event in self.scheduler.take_events():
            if isinstance(event, Emitted):
                emitted.append((event.request_id, event.tokens))
            elif isinstance(event, Finished) and event.reason != "length":
                raise RuntimeError(f"{event.request_id} ended by {event.reason}: {event.detail}")
        return emitted


class MixedEngine(ScheduledEngine):
    """Counts steps and adapter changes, and records the longest wait in steps. A step has at most one adapter."""

    longest = num_turns = num_steps = 0
    _last: str | None = None
    _waited: Mapping[str, int] = {}

    def finish(self, step: Step) -> list[tuple[str, Sequence[int]]]:
        adapter = "".join(step.adapters)
        emitted = super().finish(step)
        unfinished = {digest for seq in self.scheduler.ledger.live.values() for digest in seq.request.lane.adapters}
        self.num_steps += 1
        self.num_turns += adapter != self._last
        self._last = adapter
        self._waited = {each: self._waited.get(each, 0) + 1 for each in unfinished - {adapter}}
        self.longest = max(self.longest, *self._waited.values(), 0)
        return emitted


@dataclass(frozen=True, slots=True)
class Opened:
    replica: "AssembledReplica"
    settings: str
    weight_bytes: int  # bytes of weights that a decode step must read
    matrices: Mapping[str, tuple[int, ...]]  # [out, in] of matrices that an adapter may change, by name
    matrix_elements: int = 0  # of all matrices but the embedding and the head
    linear_only: Callable[[int, int], object] | None = None  # multiplies by each matrix once; takes tokens and outputs
    work: Callable[[], Mapping[str, float]] | None = None  # seconds of the decoder by kind of work
    device: str = "cpu"
    dtype: DType = "float32"
    digests: list[str] = field(default_factory=list)  # digests of the loaded adapters


class Timed(NamedTuple):
    nbytes: int
    seconds: float


class Octet(ScheduledEngine):
    def __init__(self, opened: Opened) -> None:
        super().__init__(opened.replica.scheduler, opened.replica.engine)
        self._opened = opened

    @property
    def calls(self) -> Mapping[str, Call]:
        calls: dict[str, Call] = {"generate": self.generate, "arrive": self.arrive, "mix": self.mix}
        calls |= {"steps": self.steps, "read": self.read}
        if self._opened.linear_only is not None:
            calls["linear"] = partial(self.linear, self._opened.linear_only)
        if self._opened.work is not None:
            calls["shares"] = partial(self.shares, self._opened.work)
        if self._opened.device != "cpu":
            calls["multiply"] = self.multiply
        return calls

    def mix(self, prompts: Prompts, new_tokens: int, num_adapters: int, age_bound: int | None) -> dict[str, Any]:
        """Generate with a new scheduler. `age_bound` None means a replica's default; with 1, adapters alternate at
        every step."""
        opened, base = self._opened, self.scheduler
        with TemporaryDirectory(prefix="octet-bench-") as folder:
            for index in range(len(opened.digests), num_adapters):
                directory = write_adapter(Path(folder) / str(index), opened.matrices, index)
                opened.digests.append(opened.replica.adapters.load(f"bench-{index}", directory))
        config = base.config if age_bound is None else replace(base.config, age_bound=age_bound)
        pool = BlockPool(base.pool.capacity + 1, base.pool.block_size, prefix_cache=False)
        scheduler = Scheduler(pool, config, base.clock, budget=base.budget)
        if config.mixes_adapters:  # there are no turns
            engine = ScheduledEngine(scheduler, opened.replica.engine)
            return engine.generate(prompts, new_tokens, opened.digests[:num_adapters] or (None,))
        mixed = MixedEngine(scheduler, opened.replica.engine)
        result = mixed.generate(prompts, new_tokens, opened.digests[:num_adapters] or (None,))
        return {**result, "longest": mixed.longest, "turns": mixed.num_turns, "steps": mixed.num_steps}

    def steps(self, prompts: Prompts, new_tokens: int) -> list[tuple[str, int, int, float]]:
        """Generate. Return mode, tokens, attended pairs and seconds (including scheduling) of each step."""
        return [
            (step.mode, step.num_tokens, step.num_pairs, seconds)
            for step, seconds in self._timed_steps(prompts, new_tokens)
        ]

    def shares(self, work: Callable[[], Mapping[str, float]], prompts: Prompts, new_tokens: int) -> Mapping[str, float]:
        """Generate, and return the seconds of the decode steps by kind of work."""
        spent: Counter[str] = Counter()
        before = work()
        for step, seconds in self._timed_steps(prompts, new_tokens):
            after = work()
            if step.mode == "decode":
                parts = {kind: after[kind] - before[kind] for kind in after}
                spent.update({**parts, "around it": seconds - sum(parts.values())})
            before = after
        return spent

    def _timed_steps(self, prompts: Prompts, new_tokens: int) -> Iterator[tuple[Step, float]]:
        for prompt in prompts:
            self.submit(prompt, new_tokens)
        start = perf_counter()
        while (step := self._loop.run_once()) is not None:
            self.finish(step)
            if step.mode != "decode":  # a decode step has ended, and the next one may run already
                settle(self._opened.device)
            now = perf_counter()
            yield step, now - start
            start = now

    def linear(self, linear_only: Callable[[int, int], object], tokens: int, outputs: int) -> dict[str, float]:
        return {"seconds": mean_seconds(partial(linear_only, tokens, outputs))}

    def read(self, nbytes: int | None) -> dict[str, Any]:
        return timed_read(self._opened.weight_bytes if nbytes is None else nbytes, self._opened.device)._asdict()

    def multiply(self) -> dict[str, float]:
        """Return the operations and seconds of a large matrix product, and the operations of one token's products."""
        seconds = timed_product(_LARGE, self._opened.device, self._opened.dtype)
        return {"operations": 2.0 * _LARGE**3, "seconds": seconds, "a_token": 2.0 * self._opened.matrix_elements}


def settle(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def timed_read(nbytes: int, device: str = "cpu") -> Timed:
    import torch

    numbers = torch.ones(max(1, nbytes // 4), dtype=torch.float32, device=device)

    def read() -> None:
        numbers.sum()
        settle(device)

    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        return Timed(nbytes, mean_seconds(read))
    finally:
        torch.set_num_threads(threads)


def timed_product(size: int, device: str, dtype: DType) -> float:
    """Return the seconds of a product of two random square matrices."""
    import torch

    kind = getattr(torch, dtype)
    a, b = (torch.randn((size, size), device=device, dtype=kind) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)
        settle(device)

    multiply()
    return mean_seconds(multiply)


def mean_seconds(work: Callable[[], object]) -> float:
    start, num_runs = perf_counter(), 0
    while (seconds := perf_counter() - start) < _LONG_ENOUGH:
        work()
        num_runs += 1
    return seconds / num_runs


def open_sim() -> Opened:
    """Open an engine that uses a formula instead of a model, to test the bench."""
    from specialist.engines.sim.engine import CostModel
    from specialist.server.replica import create_sim_replica
    from specialist.server.settings import ReplicaSettings

    cost = CostModel(1e-4, 1e-5, 1e-9, 2e-4, 2e-5, 1e-9, 0.0, 0.0)
    replica = create_sim_replica(ReplicaSettings(engine="sim"), SystemClock(), cost)
    tiny = {"layers.0.q": (4, 4)}
    return Opened(replica, "simulated, no model", 2**20, tiny)


def open_native(model: Path, device: str, dtype: DType) -> Opened:
    from specialist.adapters.adapter import matrix_shapes
    from specialist.engines.native.engine import NativeEngine
    from specialist.engines.native.fused_decoder import FusedDecoder
    from specialist.models.hub import model_name
    from specialist.models.open import open_checkpoint
    from specialist.server.native_replica import replica_from_checkpoint
    from specialist.server.settings import ReplicaSettings

    settings = ReplicaSettings(model=model, device=device, dtype=dtype)
    if device != "cpu":
        settings = replace(settings, max_running=_GPU_RUNNING, memory_fraction=_GPU_SHARE)
    checkpoint = open_checkpoint(model)
    replica = replica_from_checkpoint(checkpoint, model_name(model), settings, SystemClock())
    if not isinstance(replica.engine, NativeEngine):
        raise TypeError(f"expected the native engine, got {type(replica.engine).__name__}")
    decoder = replica.engine.decoder
    fused = decoder if isinstance(decoder, FusedDecoder) else None
    kernels = ", ".join(f"{kernel.op}: {kernel.choice}" for kernel in replica.kernels)
    matrices = matrix_shapes(checkpoint.config)
    return Opened(
        replica,
        f"octet {__version__}, {kernels}, KV of {replica.scheduler.pool.num_slots:,} tokens in "
        f"{replica.scheduler.config.kv_dtype}",
        least_bytes(checkpoint),
        matrices,
        sum(rows * columns for rows, columns in matrices.values()),
        None if fused is None else fused.linear_only,
        None if fused is None else fused.seconds,
        device,
        dtype,
    )


def least_bytes(checkpoint: "Checkpoint") -> int:
    """Return the bytes of weights that one token needs. An untied embedding does not count, because a token needs only
    one of its rows."""
    weights = checkpoint.weights
    names = [name for name in weights if name != "embed" or checkpoint.config.tied_head]
    return sum(_stored_bytes(weights[name]) for name in names)


def _stored_bytes(weight: "Weight") -> int:
    """Return the bytes as stored. Symmetric formats store no minima, because these follow from the scales."""
    from specialist.models.weights import Affine

    if not isinstance(weight, Affine):
        return weight.nbytes
    symmetric = weight.minimum.equal(weight.scale * -(1 << weight.bits - 1))
    return weight.q.nbytes + weight.scale.nbytes + (0 if symmetric else weight.minimum.nbytes)


def load(arguments: Sequence[str]) -> Loaded:
    if arguments[0] == SERVED:
        return load_served(arguments[1:])
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--engine", choices=("native", "sim"), default="native")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=get_args(DType), default="float32")
    options = parser.parse_args(arguments)
    opened = open_sim() if options.engine == "sim" else open_native(options.model, options.device, options.dtype)
    gc.collect()
    gc.freeze()  # as a replica does
    return Loaded(f"{opened.settings}, {_describe_device(opened.device, options.dtype)}", Octet(opened).calls)


def _describe_device(device: str, dtype: str) -> str:
    if device == "cpu":
        return f"{len(os.sched_getaffinity(0))} threads"
    import torch

    return f"{dtype} on {torch.cuda.get_device_name(device)}, torch {torch.__version__}"


def _generate(address: str, prompts: Prompts, new_tokens: int, *, attach: bool = True) -> dict[str, Any]:
    lengths, at = [new_tokens] * len(prompts), [0.0] * len(prompts)
    return asyncio.run(_stream_all(address, prompts, lengths, at, may_refuse=False, attach=attach))


def _arrive(address: str, prompts: Prompts, new_tokens: Sequence[int], at: Sequence[float]) -> dict[str, Any]:
    return asyncio.run(_stream_all(address, prompts, new_tokens, at, may_refuse=True, attach=True))


async def _stream_all(
    address: str, prompts: Prompts, new_tokens: Sequence[int], at: Sequence[float], *, may_refuse: bool, attach: bool
) -> dict[str, Any]:
    async with SpecialistClient(address, attach=attach) as client:
        await client.describe()  # so that connecting is not part of an answer
        if attach and not await client.wait_attached():
            raise RuntimeError("the specialist attaches no call")
        stopwatch = Stopwatch(len(prompts))
        streams = []
        for i, (prompt, length, due) in enumerate(zip(prompts, new_tokens, at, strict=True)):
            while (wait := due - stopwatch.seconds) > 0:
                await asyncio.sleep(wait)
            streams.append(asyncio.ensure_future(_stream(client, i, prompt, length, stopwatch)))
        for ended in await asyncio.gather(*streams, return_exceptions=may_refuse):
            refused = isinstance(ended, SpecialistError) and ended.code in _REFUSALS
            if isinstance(ended, BaseException) and not refused:
                raise ended
    return stopwatch.result()


async def _stream(
    client: SpecialistClient, index: int, prompt: Sequence[int], new_tokens: int, stopwatch: Stopwatch
) -> None:
    request = wire.GenerateRequest(
        request_id=f"r{index}",
        tokens=wire.TokenIds(ids=prompt),
        sampling=wire.Sampling(temperature=0.0),
        max_tokens=new_tokens,
        ignore_eos=True,
    )
    async for event in client.generate(request):
        stopwatch.arrived(index, event.chunk.token_ids)


def load_served(arguments: Sequence[str]) -> Loaded:
    """Start a specialist. Arguments: the path of the model, then options of `octet specialist`."""
    model, *options = arguments
    if "--device" in options:
        options += ["--memory-fraction", str(_GPU_SHARE), "--max-running", str(_GPU_RUNNING)]
    command = [sys.executable, "-m", "octet.cli", "specialist", "--port", "0", "--model", model, *options]
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603
    line = service.stdout.readline() if service.stdout is not None else ""
    ready = re.search(r"ready on (\S+) \((.*)\)", line)
    if ready is None:
        raise RuntimeError(f"the specialist was not ready, but printed {line!r}")
    address, details = ready.groups()
    calls: dict[str, Call] = {"generate": partial(_generate, address), "arrive": partial(_arrive, address)}
    calls[APART] = partial(_generate, address, attach=False)
    return Loaded(f"octet {__version__} over gRPC, {details}", calls)


if __name__ == "__main__":
    serve(load)
