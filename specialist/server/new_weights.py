"""Weights that start beside a specialist's running ones: checks before they are opened, and the replica."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from octet.clock import SystemClock
from octet.config.ensemble import SpecialistConfig
from octet.rpc.memory import memory_reader
from octet.supervisor.weights import WantedWeights
from specialist.engines.native.settings import DEFAULT_KV_BYTES, KernelName
from specialist.models.checks import Inspection
from specialist.models.fields import ModelRefused
from specialist.models.hub import find_files, find_model
from specialist.models.open import inspect_model
from specialist.models.progress import Progress
from specialist.server.replica import AssembledReplica, assemble_replica
from specialist.server.settings import ReplicaSettings

_OOM_SCORE = Path("/proc/self/oom_score_adj")
_MEMINFO = Path("/proc/meminfo")
_FIRST_TO_GO = "1000"
_KEPT_ALIKE = ("architecture", "vocab_size")


def assemble_new_weights(
    settings_of: Callable[[SpecialistConfig], ReplicaSettings],
    specialist: SpecialistConfig,
    weights: WantedWeights,
    kernel: KernelName | Literal["auto"],
    progress: Progress,
) -> AssembledReplica:
    """Raises ModelRefused for weights that cannot replace the running ones, MemoryError if they do not fit beside
    them, and what `assemble_replica` raises."""
    if specialist.engine != "native":
        raise ModelRefused(f"the {specialist.engine} engine has no weights to refresh")
    path = find_model(specialist.model, progress)
    adapters = {name: str(find_files(text, "adapter", progress)) for name, text in specialist.adapters.items()}
    with _killed_first():
        if weights.like:
            check_alike(path, find_model(weights.like, progress))
        settings = replace(settings_of(replace(specialist, model=str(path), adapters=adapters)), kernel=kernel)
        paths = [path] if settings.draft_model is None else [path, settings.draft_model]
        check_memory(paths, _host_bytes(path, settings))
        replica = assemble_replica(settings, SystemClock(), progress)
    if weights.revision not in ("", replica.lane.revision):
        raise ModelRefused(f"{path}: the digest is {replica.lane.revision}, but {weights.revision} is expected")
    return replica


def _host_bytes(path: Path, settings: ReplicaSettings) -> int:
    """Return the bytes that the KV pool, spilled blocks and states take of the host's memory."""
    config = _inspect(path).config
    is_recurrent = config is not None and config.is_recurrent
    spilled = 0 if is_recurrent else settings.spill_bytes
    if settings.device != "cpu":
        return spilled
    return spilled + (settings.state_bytes if is_recurrent else 0) + (settings.kv_bytes or DEFAULT_KV_BYTES)


def check_alike(path: Path, other: Path) -> None:
    """Raises ModelRefused unless both models have the same architecture and tokenizer."""
    new, old = _inspect(path), _inspect(other)
    for name in _KEPT_ALIKE:
        mine, theirs = getattr(new.config, name), getattr(old.config, name)
        if mine != theirs:
            raise ModelRefused(f"{path}: its {name} is {mine}, but that of the serving weights is {theirs}")
    if new.vocabulary is None or old.vocabulary is None:
        return
    parts = [
        (each.tokenizer.to_str(), dict(each.control_ids), each.eos_ids) for each in (new.vocabulary, old.vocabulary)
    ]
    if parts[0] != parts[1]:
        raise ModelRefused(f"{path}: its tokenizer differs from that of the serving weights")


def check_memory(paths: Sequence[Path], kv_bytes: int) -> None:
    """Raises MemoryError if the weights of a model (and its draft model) and the KV pool exceed the free memory."""
    files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path])]
    needed = kv_bytes + sum(each.stat().st_size for each in files if each.is_file())
    free = free_memory()
    if free is not None and needed > free:
        shown = f"{needed >> 20:,} MiB are needed beside the running weights, and {free >> 20:,} MiB are free"
        raise MemoryError(f"{paths[0]}: {shown}")


def free_memory() -> int | None:
    """Return the bytes that this machine, or the process's cgroup, can still give; None if unknown."""
    found = []
    with suppress(OSError, StopIteration, ValueError):
        line = next(line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) << 10)
    usage = memory_reader()()
    if usage is not None:
        found.append(usage.limit - usage.used)
    return min(found, default=None)


def _inspect(path: Path) -> Inspection:
    found = inspect_model(path)
    if found.config is None or found.problems:
        raise ModelRefused(found.problems[0])
    return found


@contextmanager
def _killed_first() -> Iterator[None]:
    """If memory runs out while the weights are opened, let the kernel kill this process and none that serves."""
    try:
        before = _OOM_SCORE.read_text()
        _OOM_SCORE.write_text(_FIRST_TO_GO)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            _OOM_SCORE.write_text(before)
