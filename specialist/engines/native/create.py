"""Creates an engine from a checkpoint, with the fastest kernel for this machine."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.native.engine import NativeEngine
from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.engines.native.gpu_memory import (
    LEAST_BLOCKS,
    bytes_of_pages,
    fit_pool,
    padded_kv,
    plan_pages,
    why_unsupported,
)
from specialist.engines.native.settings import DEFAULT_KV_BYTES, DType, KernelName, KVType, NativeSettings
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.models.progress import Progress, silent
from specialist.models.weights import Affine, Weight
from specialist.ops.cpu.library import BuildFailed, build, load_library
from specialist.ops.cpu.linear import DynQuant, Int4Pack, PackedLinear, mixed
from specialist.ops.cpu.packed_weights import PackedWeights, pack_checkpoint
from specialist.ops.cpu.sampling import FusedSampler
from specialist.ops.reference.layers import Dense, Linear, MakeLinear

TORCH_KERNELS: dict[KernelName, MakeLinear] = {
    "int4pack": mixed(Int4Pack),
    "dyn-quant": mixed(DynQuant),
    "float32": Dense,
}
NUM_EMPTY_BLOCKS = 1 << 15
"""Blocks of a model without attention. They take no memory but the scheduler's entry for each."""
BATCHES = (1, 16)
ROUNDS = 5


class KernelChoice(NamedTuple):
    kernel: KernelName
    why: str


def choose_kernel(
    weight: Weight, library: Any | BuildFailed, wanted: KernelName | Literal["auto"], device: str
) -> KernelChoice:
    """Return `wanted`. If it is `auto`, return the fastest kernel for BATCHES on a CPU. On a GPU, return `triton`."""
    if wanted != "auto":
        return KernelChoice(wanted, "configured")
    if torch.device(device).type != "cpu":
        return KernelChoice("triton", f"the kernels for {device}")
    totals: dict[KernelName, float] = {}
    tried = []
    for kernel, make in _kernels(weight, library).items():
        try:
            seconds = _time(make, weight.shape[1])
        except (RuntimeError, ValueError, NotImplementedError) as error:
            tried.append(f"{kernel}: not available: {str(error).splitlines()[0][:200]}")
            continue
        totals[kernel] = sum(seconds)
        times = (f"{each * 1e6:.0f} us at {batch}" for each, batch in zip(seconds, BATCHES, strict=True))
        tried.append(f"{kernel}: {', '.join(times)}")
    return KernelChoice(min(totals, key=totals.__getitem__), "; ".join(tried))


def _kernels(weight: Weight, library: Any | BuildFailed) -> dict[KernelName, Callable[[], Linear]]:
    def fused() -> Linear:
        if isinstance(library, BuildFailed):
            raise library
        return PackedLinear(weight, library)

    usable = {name: make for name, make in TORCH_KERNELS.items() if isinstance(weight, Affine) or make is Dense}
    cpu, dtype = torch.device("cpu"), torch.float32
    return {"fused": fused, **{name: partial(make, weight, cpu, dtype) for name, make in usable.items()}}


def _time(make: Callable[[], Linear], columns: int) -> list[float]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        linear = make()
        return [_seconds(linear, torch.randn(batch, columns)) for batch in BATCHES]
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


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class NativeParts:
    engine: NativeEngine
    choice: KernelChoice
    kv_dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class SharedParts:
    """Parts shared by all engines of a model on this machine. Preparing them starts no threads, so forking is safe."""

    library: Any | BuildFailed
    choice: KernelChoice
    prepared: PackedWeights | None  # for the fused kernel only


def create_native(
    checkpoint: Checkpoint, settings: NativeSettings, progress: Progress = silent, shared: SharedParts | None = None
) -> NativeParts:
    """Create the engine. Raises ValueError for an unavailable device or type, OSError if the cache cannot be written,
    BuildFailed if the configured kernel cannot be built, MemoryError if the pool does not fit."""
    _check_device(settings)
    shared = shared or prepare_shared(checkpoint, settings, try_kernels(checkpoint, settings), progress)
    store = AdapterStore(checkpoint.config, settings.max_adapters)
    if shared.prepared is not None:
        fused = _fused(checkpoint, settings, shared.library, shared.prepared)
        store.when_unused(fused.adapters.drop)
        slots = DeviceSlots(settings.adapter_slots, fused.device, torch.float32)
        return NativeParts(
            NativeEngine(fused, store, slots, FusedSampler(shared.library)), shared.choice, fused.kv_dtype
        )
    choice = usable_on_gpu(checkpoint, settings, shared.choice)
    try:
        if choice.kernel == "triton" and not checkpoint.config.is_recurrent:
            return _gpu(checkpoint, settings, choice, store)
        decoder = _torch(checkpoint, settings, choice)
    except torch.OutOfMemoryError as refused:
        raise MemoryError(
            f"the model and its KV pool do not fit on {settings.device}: lower kv_memory or memory_fraction, stop "
            f"another process on this card, or choose a smaller model: {refused}"
        ) from refused
    slots = DeviceSlots(settings.adapter_slots, decoder.device, decoder.dtype)
    return NativeParts(NativeEngine(decoder, store, slots), choice, settings.dtype)


def why_no_triton(checkpoint: Checkpoint, dtype: DType) -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed"
    return why_unsupported(checkpoint.config, getattr(torch, dtype))


def usable_on_gpu(checkpoint: Checkpoint, settings: NativeSettings, choice: KernelChoice) -> KernelChoice:
    """Return the choice, or the reference with the reason if the GPU kernels cannot compute this model here. Raises
    ValueError if these were configured."""
    if choice.kernel != "triton":
        return choice
    why: str | None = f"the kernels need cuda, the device is {settings.device}"
    if torch.device(settings.device).type == "cuda":
        why = why_no_triton(checkpoint, settings.dtype)
    if why is None:
        return choice
    if settings.kernel == "triton":
        raise ValueError(f"kernel triton cannot be used: {why}")
    _log.warning("the GPU computes with PyTorch's kernels: %s", why)
    return KernelChoice("float32", f"PyTorch on {settings.device}: {why}")


def _gpu(checkpoint: Checkpoint, settings: NativeSettings, choice: KernelChoice, store: AdapterStore) -> NativeParts:
    from specialist.engines.native.gpu_adapters import MOST_PAGES, page_bytes  # imports triton
    from specialist.engines.native.gpu_decoder import GpuDecoder
    from specialist.engines.native.gpu_engine import GpuEngine

    torch.set_num_threads(_threads(settings))
    dtype: torch.dtype = getattr(torch, settings.dtype)
    if dtype.itemsize != 2 and isinstance(usual_matrix(checkpoint), Affine):
        _log.warning("quantised weights are kept as %s on the GPU: only dtype bfloat16 keeps them as they are", dtype)
    pages, size = MOST_PAGES, page_bytes(checkpoint.config, dtype.itemsize)
    if is_fitted := _is_fitted(settings):
        pages = plan_pages(torch.cuda.mem_get_info(settings.device)[1], settings.memory_fraction, size, MOST_PAGES)
    decoder = GpuDecoder(
        checkpoint,
        num_blocks=LEAST_BLOCKS if is_fitted else _num_blocks(padded_kv(checkpoint.config), settings, settings.dtype),
        block_size=settings.block_size,
        device=settings.device,
        dtype=dtype,
        adapter_pages=pages,
        most_prompt=settings.max_tokens,
    )
    if is_fitted:
        _fit(decoder, settings, adapters=bytes_of_pages(pages, size))
    slots = DeviceSlots(settings.adapter_slots, decoder.device, decoder.dtype)
    return NativeParts(GpuEngine(decoder, store, slots), choice, settings.dtype)


def try_kernels(checkpoint: Checkpoint, settings: NativeSettings) -> KernelChoice:
    """Choose the matrix kernel, by timing if necessary. Other load on the machine may then affect the choice."""
    library = _library(settings)
    if checkpoint.config.is_recurrent and settings.kernel == "auto" and not isinstance(library, BuildFailed):
        return KernelChoice("fused", "only these compute recurrent layers in C++")
    choice = choose_kernel(usual_matrix(checkpoint), library, settings.kernel, settings.device)
    _log.info("matrix kernel: %s; tried: %s", choice.kernel, choice.why)
    return choice


def usual_matrix(checkpoint: Checkpoint) -> Weight:
    """Return a matrix whose type and width are usual for the model."""
    names = (f"layers.{layer}.{name}" for name in ("gate", "up", "in") for layer in range(checkpoint.config.num_layers))
    return checkpoint.weights[next(name for name in names if name in checkpoint.weights)]


def prepare_shared(
    checkpoint: Checkpoint, settings: NativeSettings, choice: KernelChoice, progress: Progress = silent
) -> SharedParts:
    prepared = pack_checkpoint(checkpoint, settings.cache, progress) if choice.kernel == "fused" else None
    return SharedParts(_library(settings), choice, prepared)


def _check_device(settings: NativeSettings) -> None:
    kind = settings.device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {settings.device!r:.80}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("PyTorch finds no CUDA device: set device to cpu")
    if kind == "cpu" and settings.dtype != "float32":
        raise ValueError(f"dtype {settings.dtype} requires cuda: on a CPU everything is computed in float32")


def _library(settings: NativeSettings) -> Any | BuildFailed:
    if torch.device(settings.device).type != "cpu" or settings.kernel not in ("auto", "fused"):
        return BuildFailed("another kernel is configured")
    try:
        return load_library(build(settings.cache))
    except BuildFailed as failure:
        if settings.kernel == "fused":
            raise
        _log.warning("the fast CPU kernels cannot be built: %s", failure)
        return failure


def _fused(checkpoint: Checkpoint, settings: NativeSettings, library: Any, prepared: PackedWeights) -> FusedDecoder:
    torch.set_num_threads(1)  # the kernels have their own threads, with which torch's would only compete
    half_by_default = isinstance(usual_matrix(checkpoint), Affine)
    default: KVType = "float16" if half_by_default else "float32"
    kv_dtype = default if settings.kv_dtype == "auto" else settings.kv_dtype
    return FusedDecoder(
        checkpoint.config,
        prepared,
        library,
        num_blocks=_num_blocks(checkpoint.config.kv_token_size, settings, kv_dtype),
        block_size=settings.block_size,
        max_tokens=settings.max_tokens,
        threads=_threads(settings),
        kv_dtype=kv_dtype,
        adapter_bytes=settings.adapter_bytes,
    )


def _torch(checkpoint: Checkpoint, settings: NativeSettings, choice: KernelChoice) -> TorchDecoder:
    torch.set_num_threads(_threads(settings))
    if choice.kernel == "triton":
        from specialist.engines.native.gpu_hybrid import GpuHybridDecoder  # imports triton

        make: Callable[..., TorchDecoder] = GpuHybridDecoder
        kv_size = padded_kv(checkpoint.config)
    else:
        kv_size = checkpoint.config.kv_token_size
        make = partial(TorchDecoder, linear=TORCH_KERNELS[choice.kernel])
    is_fitted = _is_fitted(settings) and kv_size > 0
    decoder = make(
        checkpoint,
        num_blocks=LEAST_BLOCKS if is_fitted else _num_blocks(kv_size, settings, settings.dtype),
        block_size=settings.block_size,
        device=settings.device,
        dtype=getattr(torch, settings.dtype),
    )
    if is_fitted:
        states = settings.state_bytes if checkpoint.config.is_recurrent else 0
        _fit(decoder, settings, adapters=settings.adapter_bytes + states)
    return decoder


def _is_fitted(settings: NativeSettings) -> bool:
    """Whether the pool gets what the replica's share of a GPU leaves."""
    return settings.device != "cpu" and settings.num_blocks is None and settings.kv_bytes is None


def _fit(decoder: TorchDecoder, settings: NativeSettings, adapters: int) -> None:
    share, most = settings.memory_fraction, settings.max_tokens
    fit_pool(decoder, share, adapters=adapters, max_tokens=most, max_rows=settings.max_running)


def _num_blocks(kv_size: int, settings: NativeSettings, kv_dtype: str) -> int:
    """`kv_size`: the elements of a token's keys and values."""
    if settings.num_blocks is not None:
        return settings.num_blocks
    token_bytes = kv_size * getattr(torch, kv_dtype).itemsize
    if token_bytes == 0:  # blocks only name prefixes: the state of a sequence does not grow
        return NUM_EMPTY_BLOCKS
    kv_bytes = settings.kv_bytes or DEFAULT_KV_BYTES
    fits = kv_bytes // (token_bytes * settings.block_size)
    if fits < 2:
        needed = 2 * token_bytes * settings.block_size
        raise MemoryError(f"the KV pool needs at least {needed:,} bytes (two blocks), got {kv_bytes:,} bytes")
    return int(fits)


def _threads(settings: NativeSettings) -> int:
    return settings.threads or len(os.sched_getaffinity(0))
