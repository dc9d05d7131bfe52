"""Replicas as supervised processes that share imports and mapped weights by fork."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from octet.clock import SystemClock
from octet.config.annotations import parse_hub_reference
from octet.config.card_shares import USUAL_SHARE
from octet.config.ensemble import DEMO_MODEL, SpecialistConfig
from octet.supervisor.placement import ReplicaPlacement
from octet.supervisor.process import EXIT_USAGE, ProcessSpec, StatusReporter, call_in_fork
from octet.supervisor.weights import WantedWeights
from octet.supervisor.weights_processes import MakeReplica
from octet.telemetry.logs import set_up_logging
from specialist.engines.native.settings import KernelName
from specialist.models.fields import ModelRefused
from specialist.models.hub import Kind, find_files, find_model
from specialist.models.progress import Progress, bar
from specialist.server.settings import ReplicaSettings, ServiceSettings

if TYPE_CHECKING:
    from specialist.server.native_replica import SharedModel
    from specialist.server.replica import AssembledReplica


_EXIT_INTERRUPTED = 130
_Key = tuple[Path | None, str]


def replica_roles(
    places: Sequence[ReplicaPlacement], progress: Progress | None = None
) -> tuple[Sequence[ProcessSpec], MakeReplica]:
    """Prepare each model once for all its replicas (download, choose kernels, pack weights, open). Return a process for
    each replica, and a function that makes replicas of other weights. Raises OSError, ValueError (such as ModelRefused)
    or RuntimeError; each message gives advice."""
    progress = progress or bar(sys.stderr)
    places = _fetch_from_hub(places, progress)
    models = dict(_models(places, progress))
    import specialist.server.server  # noqa: F401  # before the fork: replicas share the imports

    kernels = {place.specialist.name: models.get(_key(place.specialist)) for place in places}

    def make(place: ReplicaPlacement, weights: WantedWeights) -> ProcessSpec:
        known = kernels.get(place.specialist.name)
        kernel = "auto" if known is None else known.parts.choice.kernel  # the same kernel computes the same answers
        return ProcessSpec(place.name, fork=partial(_serve_weights, place, weights, kernel))

    shared = ((place, models.get(_key(place.specialist))) for place in places)
    return [ProcessSpec(place.name, fork=partial(_serve, place, model)) for place, model in shared], make


def _fetch_from_hub(places: Sequence[ReplicaPlacement], progress: Progress) -> list[ReplicaPlacement]:
    """Download what the hub has, and put local paths in its place. Downloads run in a forked process: their threads
    must be gone before replicas are forked from this one."""
    specialists = [place.specialist for place in places if place.specialist.engine == "native"]
    models = (model for each in specialists for model in (each.model, each.draft_model) if model is not None)
    wanted: dict[str, Kind] = dict.fromkeys(models, "model")
    wanted |= dict.fromkeys((path for each in specialists for path in each.adapters.values()), "adapter")
    wanted = {text: kind for text, kind in wanted.items() if parse_hub_reference(text) is not None}
    if not wanted:
        return list(places)

    def fetch_all() -> dict[str, str] | str:
        try:
            return {text: str(find_files(text, kind, progress)) for text, kind in wanted.items()}
        except ModelRefused as refused:
            return str(refused)
        except KeyboardInterrupt:
            sys.exit(_EXIT_INTERRUPTED)  # without a traceback; the parent is interrupted too

    found = call_in_fork(fetch_all)
    if isinstance(found, str):
        raise ModelRefused(found)

    def localize(specialist: SpecialistConfig) -> SpecialistConfig:
        adapters = {name: found.get(path, path) for name, path in specialist.adapters.items()}
        model, draft = found.get(specialist.model, specialist.model), specialist.draft_model
        draft = draft if draft is None else found.get(draft, draft)
        return replace(specialist, model=model, draft_model=draft, adapters=adapters)

    return [replace(place, specialist=localize(place.specialist)) for place in places]


def _models(places: Sequence[ReplicaPlacement], progress: Progress) -> "Iterator[tuple[_Key, SharedModel]]":
    wanted = {_key(place.specialist): place for place in places if place.specialist.engine == "native"}
    if not wanted:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's import would otherwise start a thread
    from specialist.server.native_replica import share_model  # imports torch

    for key, place in wanted.items():
        yield key, share_model(_replica_settings(place.specialist), progress)


def _model(specialist: SpecialistConfig) -> Path | None:
    return None if specialist.model == DEMO_MODEL else Path(specialist.model)


def _key(specialist: SpecialistConfig) -> "_Key":
    """Return what replicas must have in common to share an opened model."""
    return _model(specialist), specialist.device


def _serve(place: ReplicaPlacement, shared: "SharedModel | None", status: StatusReporter) -> int:
    """Run a replica in its forked process. If it cannot be assembled or started, return EXIT_USAGE."""

    def assemble() -> "AssembledReplica":
        from specialist.server.replica import assemble_replica

        settings = _replica_settings(place.specialist)
        is_shared = settings.engine == "native"
        return assemble_replica(settings, SystemClock(), status.progress, shared if is_shared else None)

    return _run(place, assemble, status)


def _serve_weights(
    place: ReplicaPlacement, weights: WantedWeights, kernel: KernelName | Literal["auto"], status: StatusReporter
) -> int:
    """Run a replica of weights that no other process has opened. If they are refused, return EXIT_USAGE."""

    def assemble() -> "AssembledReplica":
        from specialist.server.new_weights import assemble_new_weights

        return assemble_new_weights(_replica_settings, place.specialist, weights, kernel, status.progress)

    return _run(place, assemble, status)


def _run(place: ReplicaPlacement, assemble: Callable[[], "AssembledReplica"], status: StatusReporter) -> int:
    set_up_logging(place.logs, "%(levelname)s %(name)s: %(message)s")
    from specialist.server.replica import check_context
    from specialist.server.server import serve

    service = ServiceSettings(
        socket=place.socket,
        max_waiting=place.specialist.max_waiting,
        piece_gap=place.specialist.piece_gap,
        adapter_root=place.adapter_root,
        adapter_digests=place.specialist.adapter_digests,
        otlp=place.otlp,
    )
    try:
        replica = assemble()
        check_context(replica, place.specialist.context)
        return serve(replica, service, lambda _: status.ready(_summary(replica)), status.alive)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # one line, because the supervisor reports the last one
        return EXIT_USAGE


def _replica_settings(specialist: SpecialistConfig) -> ReplicaSettings:
    return ReplicaSettings(
        name=specialist.name,
        engine=specialist.engine,
        model=_model(specialist),
        adapters={name: Path(directory) for name, directory in specialist.adapters.items()},
        adapter_digests=specialist.adapter_digests,
        device=specialist.device,
        dtype=specialist.dtype,
        kv_bytes=specialist.kv_memory if specialist.memory_fraction is None else None,
        memory_fraction=specialist.memory_fraction or USUAL_SHARE,
        state_bytes=specialist.state_memory,
        spill_bytes=specialist.spill_memory,
        block_size=specialist.block_size,
        max_running=specialist.max_running,
        draft_window=specialist.draft_window,
        draft_lane=specialist.draft_lane,
        draft_model=None if specialist.draft_model is None else find_model(specialist.draft_model),
        context=specialist.context,
        threads=specialist.threads,
        cost_model=None if specialist.cost_model is None else Path(specialist.cost_model),
    )


def _summary(replica: "AssembledReplica") -> str:
    """Return one row of the supervisor's table."""
    pool = replica.scheduler.pool
    kernels = ", ".join(kernel.choice for kernel in replica.kernels)
    return f"{replica.model.name}\t{replica.engine_name}, {kernels}\t{pool.capacity:,} blocks of {pool.block_size}"
