"""Which kernel multiplies a model's matrices on this CPU: whichever is fastest when tried on one of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from specialist.engines.native.settings import KernelName
from specialist.models.weight import Affine, Weight
from specialist.ops.cpu.build import BuildFailed
from specialist.ops.cpu.linear import PackedLinear
from specialist.ops.linear.dyn_quant import DynQuant
from specialist.ops.linear.int4pack import Int4Pack
from specialist.ops.linear.linear import Linear, MakeLinear
from specialist.ops.linear.mixed import Mixed
from specialist.ops.linear.reference import Dense

TORCH_KERNELS: dict[KernelName, MakeLinear] = {
    "int4pack": Mixed(Int4Pack),
    "dyn-quant": Mixed(DynQuant),
    "float32": Dense,
}
BATCHES = (1, 16)
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Trial:
    kernel: KernelName
    seconds: tuple[float, ...]
    """One thread, for each of BATCHES; empty when it cannot run here."""
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.kernel}: not here: {self.why_not}"
        times = ", ".join(f"{s * 1e6:.0f} us at {b}" for s, b in zip(self.seconds, BATCHES, strict=True))
        return f"{self.kernel}: {times}"


@dataclass(frozen=True, slots=True)
class Choice:
    kernel: KernelName
    trials: Sequence[Trial]
    reason: str = ""

    @property
    def why(self) -> str:
        return self.reason or "; ".join(map(str, self.trials))


def choose_kernel(
    weight: Weight, library: Any | BuildFailed, wanted: KernelName | Literal["auto"], device: str
) -> Choice:
    """Try every kernel on `weight` with one thread; the least total time over BATCHES wins."""
    if wanted != "auto":
        return Choice(wanted, (), "asked for")
    if torch.device(device).type != "cpu":
        return Choice("float32", (), f"the reference on {device}")
    trials = list(_trials(weight, library))
    able = [trial for trial in trials if trial.seconds]
    return Choice(min(able, key=lambda trial: sum(trial.seconds)).kernel, trials)


def _trials(weight: Weight, library: Any | BuildFailed) -> Iterator[Trial]:
    if isinstance(library, BuildFailed):
        yield Trial("fused", (), str(library))
    else:
        yield _timed("fused", weight, lambda: PackedLinear(weight, library))
    cpu, dtype = torch.device("cpu"), torch.float32
    for name, make in TORCH_KERNELS.items():
        if isinstance(weight, Affine) or make is Dense:
            yield _timed(name, weight, partial(make, weight, cpu, dtype))


def _timed(name: KernelName, weight: Weight, make: Callable[[], Linear]) -> Trial:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        linear = make()
        return Trial(name, tuple(_seconds(linear, torch.randn(batch, weight.shape[1])) for batch in BATCHES))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return Trial(name, (), str(error).splitlines()[0][:200])
    finally:
        torch.set_num_threads(threads)


def _seconds(linear: Linear, x: Tensor) -> float:
    linear(x)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        linear(x)
        times.append(time.perf_counter() - start)
    return min(times)
