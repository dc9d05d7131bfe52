"""Octet itself, asked like any peer: the scheduler and the engine in one process, without the wire."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.peers.octet_adapters import AdapterMix
from bench.peers.octet_options import octet_options
from bench.peers.serve import Loaded, Prompts, Stopwatch, serve
from octet import __version__
from octet.clock import SystemClock
from octet.identity import Lane
from specialist.adapters.catalog import AdapterCatalog
from specialist.engines.base import Engine
from specialist.engines.native.settings import DType
from specialist.scheduling.scheduler import Scheduler, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished

if TYPE_CHECKING:
    from specialist.models.checkpoint import Checkpoint
    from specialist.models.weights import Weight

_LONG_ENOUGH = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Opened:
    scheduler: Scheduler
    engine: Engine
    settings: str
    weight_bytes: int  # the least bytes of a decode step
    linear_only: Callable[[int, int], object] | None = None
    """Runs every matrix of the model once for so many tokens and outputs; None where there is none to run."""

    adapters: AdapterCatalog | None = None
    matrices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """[out, in] of what an adapter may change, by name."""

    work: Callable[[], Mapping[str, float]] | None = None
    # seconds of the decoder by kind of work, if it reports them

    device: str = "cpu"

    @property
    def lane(self) -> Lane:
        return self.scheduler.config.lane


class Timed(NamedTuple):
    nbytes: int
    seconds: float


class Octet:
    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._scheduler = opened.scheduler
        self._loop = StepLoop(opened.scheduler, opened.engine)
        self._names = count()

    @property
    def calls(self) -> Mapping[str, Callable[..., Any]]:
        calls: dict[str, Callable[..., Any]] = {"generate": self.generate, "steps": self.steps, "read": self.read}
        calls["arrive"] = self.arrive
        opened = self._opened
        if opened.adapters is not None:
            calls["mix"] = AdapterMix(opened.scheduler, opened.engine, opened.adapters, opened.matrices).mix
        if self._opened.linear_only is not None:
            calls["linear"] = self.linear
        if self._opened.work is not None:
            calls["shares"] = self.shares
        return calls

    def generate(self, prompts: Prompts, new_tokens: int) -> dict[str, Any]:
        stopwatch = Stopwatch(len(prompts))
        prompt_of = self._submit(prompts, new_tokens)
        while self._loop.run_once() is not None:
            self._note(prompt_of, stopwatch)
        return stopwatch.result()

    def arrive(self, prompts: Prompts, new_tokens: Sequence[int], at: Sequence[float]) -> dict[str, Any]:
        stopwatch, prompt_of, num_here = Stopwatch(len(prompts)), dict[str, int](), 0
        while True:
            while num_here < len(at) and at[num_here] <= stopwatch.seconds:
                (name,) = self._submit(prompts[num_here : num_here + 1], new_tokens[num_here])
                prompt_of[name] = num_here
                num_here += 1
            if self._loop.run_once() is not None:
                self._note(prompt_of, stopwatch)
            elif num_here == len(at):
                return stopwatch.result()
            else:
                sleep(max(0.0, at[num_here] - stopwatch.seconds))

    def steps(self, prompts: Prompts, new_tokens: int) -> list[tuple[str, int, int, float]]:
        """Generates, and returns mode, tokens, pairs and seconds of each step, scheduling included."""
        prompt_of = self._submit(prompts, new_tokens)
        steps: list[tuple[str, int, int, float]] = []
        start = perf_counter()
        while (step := self._loop.run_once()) is not None:
            self._note(prompt_of, Stopwatch(len(prompts)))
            settle(self._opened.device)
            now = perf_counter()
            steps.append(
                (step.mode, step.num_tokens, sum(len(row.tokens) * row.stop for row in step.rows), now - start)
            )
            start = now
        return steps

    def shares(self, prompts: Prompts, new_tokens: int) -> dict[str, float]:
        work = self._opened.work
        if work is None:
            raise ValueError("this engine does not report its time by kind of work")
        prompt_of = self._submit(prompts, new_tokens)
        spent: dict[str, float] = {}
        before, start = work(), perf_counter()
        while (step := self._loop.run_once()) is not None:
            self._note(prompt_of, Stopwatch(len(prompts)))
            after, now = work(), perf_counter()
            if step.mode == "decode":
                parts = {kind: after[kind] - before[kind] for kind in after}
                parts["around it"] = now - start - sum(parts.values())
                spent = {kind: spent.get(kind, 0.0) + seconds for kind, seconds in parts.items()}
            before, start = after, now
        return spent

    def linear(self, tokens: int, outputs: int) -> dict[str, float]:
        if self._opened.linear_only is None:
            raise ValueError("this engine has no bare linear layers to run")
        return {"seconds": mean_seconds(partial(self._opened.linear_only, tokens, outputs))}

    def read(self, nbytes: int | None) -> dict[str, Any]:
        return timed_read(self._opened.weight_bytes if nbytes is None else nbytes, self._opened.device)._asdict()

    def _submit(self, prompts: Prompts, new_tokens: int) -> dict[str, int]:
        prompt_of = {f"r{next(self._names)}": i for i in range(len(prompts))}
        for name, i in prompt_of.items():
            self._scheduler.submit(Request(name, self._opened.lane, tuple(prompts[i]), new_tokens))
        return prompt_of

    def _note(self, prompt_of: Mapping[str, int], stopwatch: Stopwatch) -> None:
        for event in self._scheduler.take_events():
            if isinstance(event, Emitted):
                stopwatch.arrived(prompt_of[event.request_id], event.tokens)
            elif isinstance(event, Finished) and event.reason != "length":
                raise RuntimeError(f"{event.request_id} ended by {event.reason}: {event.detail}")


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


def mean_seconds(work: Callable[[], object]) -> float:
    start, num_runs = perf_counter(), 0
    while (seconds := perf_counter() - start) < _LONG_ENOUGH:
        work()
        num_runs += 1
    return seconds / num_runs


def open_sim() -> Opened:
    """Arithmetic instead of a model: shows that the bench works."""
    from specialist.engines.sim.engine import CostModel
    from specialist.server.replica import create_sim_replica
    from specialist.server.settings import ReplicaSettings

    cost = CostModel(1e-4, 1e-5, 1e-9, 2e-4, 2e-5, 1e-9, 0.0, 0.0)
    replica = create_sim_replica(ReplicaSettings(engine="sim"), SystemClock(), cost)
    tiny = {"layers.0.q": (4, 4)}
    return Opened(replica.scheduler, replica.engine, "simulated, no model", 2**20, None, replica.adapters, tiny)


def open_native(model: Path, device: str = "cpu", dtype: DType = "float32") -> Opened:
    from specialist.adapters.adapter import matrix_shapes
    from specialist.engines.native.engine import NativeEngine
    from specialist.engines.native.fused_decoder import FusedDecoder
    from specialist.models.open import open_checkpoint
    from specialist.server.replica import assemble_replica
    from specialist.server.settings import ReplicaSettings

    replica = assemble_replica(ReplicaSettings(model=model, device=device, dtype=dtype), SystemClock())
    if not isinstance(replica.engine, NativeEngine):
        raise TypeError(f"a native replica runs {type(replica.engine).__name__}")
    decoder = replica.engine.decoder
    linear_only = decoder.linear_only if isinstance(decoder, FusedDecoder) else None
    kernels = ", ".join(f"{kernel.op}: {kernel.choice}" for kernel in replica.kernels)
    settings = f"octet {__version__}, {kernels}, KV in {replica.scheduler.config.kv_dtype}"
    checkpoint = open_checkpoint(model)
    return Opened(
        replica.scheduler,
        replica.engine,
        settings,
        least_bytes(checkpoint),
        linear_only,
        replica.adapters,
        matrix_shapes(checkpoint.config),
        decoder.seconds if isinstance(decoder, FusedDecoder) else None,
        device,
    )


def least_bytes(checkpoint: "Checkpoint") -> int:
    """Bytes of weights that one token needs: each matrix once, of an untied embedding only a row."""
    weights = checkpoint.weights
    names = [name for name in weights if name != "embed" or checkpoint.config.tied_head]
    return sum(_stored_bytes(weights[name]) for name in names)


def _stored_bytes(weight: "Weight") -> int:
    """Symmetric formats store no minima: half the range times the scale."""
    from specialist.models.weights import Affine

    if not isinstance(weight, Affine):
        return weight.nbytes
    symmetric = weight.minimum.equal(weight.scale * -(1 << weight.bits - 1))
    return weight.q.nbytes + weight.scale.nbytes + (0 if symmetric else weight.minimum.nbytes)


def load(arguments: Sequence[str]) -> Loaded:
    options = octet_options(arguments)
    opened = open_sim() if options.engine == "sim" else open_native(options.model, options.device, options.dtype)
    return Loaded(f"{opened.settings}, {_computed_by(opened.device, options.dtype)}", Octet(opened).calls)


def _computed_by(device: str, dtype: str) -> str:
    if device == "cpu":
        return f"{len(os.sched_getaffinity(0))} threads"
    import torch

    return f"{dtype} on {torch.cuda.get_device_name(device)}, torch {torch.__version__}"


if __name__ == "__main__":
    serve(load)
