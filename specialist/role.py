"""Replicas as processes of a supervisor that share imports and mapped weights with it, and so with each other."""

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from octet.config.ensemble import DEMO_MODEL, SpecialistConfig
from octet.places import Place
from octet.supervise.role import USAGE, Role
from octet.supervise.status import Status
from octet.telemetry.logs import set_up
from specialist.models.progress import Progress, bar
from specialist.service.settings import ReplicaSettings, ServiceSettings

if TYPE_CHECKING:
    from specialist.service.native_replica import SharedModel
    from specialist.service.replica import Replica


def replica_roles(places: Sequence[Place], progress: Progress | None = None) -> Sequence[Role]:
    """Prepares once what replicas have in common: downloads, compiles, packs, tries kernels, opens.

    Raises ModelRefused, OSError, ValueError or RuntimeError, each saying what to do.
    """
    models = dict(_models(places, progress or bar(sys.stderr)))
    _import_early()
    return [Role(place.name, fork=partial(_serve, place, models.get(_model(place.specialist)))) for place in places]


def _models(places: Sequence[Place], progress: Progress) -> "Iterator[tuple[Path | None, SharedModel]]":
    wanted = {_model(place.specialist): place for place in places if place.specialist.engine == "native"}
    if not wanted:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own pool would be a thread, started by its import
    from specialist.service.native_replica import share_model  # loads a framework

    for path, place in wanted.items():
        yield path, share_model(_replica_settings(place.specialist), progress)


def _import_early() -> None:
    """What every copy needs is read once."""
    import specialist.service.assemble
    import specialist.service.process  # noqa: F401


def _model(specialist: SpecialistConfig) -> Path | None:
    return None if specialist.model == DEMO_MODEL else Path(specialist.model)


def _serve(place: Place, shared: "SharedModel | None", status: Status) -> int:
    """In the copy. A replica that cannot be as it was asked for ends with the status that says so."""
    set_up(place.logs, "%(levelname)s %(name)s: %(message)s")
    from octet.clock import SystemClock
    from specialist.service.assemble import assemble
    from specialist.service.context import check_context
    from specialist.service.process import serve

    settings = _replica_settings(place.specialist)
    door = ServiceSettings(
        socket=place.socket,
        max_waiting=place.specialist.max_waiting,
        piece_gap=place.specialist.piece_gap,
        adapter_root=place.adapter_root,
        adapter_digests=place.specialist.adapter_digests,
        otlp=place.otlp,
    )
    try:
        replica = assemble(settings, SystemClock(), status.progress, shared if settings.engine == "native" else None)
        check_context(replica, settings.context)
        return serve(replica, door, lambda _: status.ready(_summary(replica)), status.alive)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(error, file=sys.stderr)
        return USAGE


def _replica_settings(specialist: SpecialistConfig) -> ReplicaSettings:
    return ReplicaSettings(
        name=specialist.name,
        engine=specialist.engine,
        model=_model(specialist),
        adapters={name: Path(directory) for name, directory in specialist.adapters.items()},
        adapter_digests=specialist.adapter_digests,
        kv_bytes=specialist.kv_memory,
        block_size=specialist.block_size,
        max_running=specialist.max_running,
        context=specialist.context,
        threads=specialist.threads,
        cost_model=None if specialist.cost_model is None else Path(specialist.cost_model),
    )


def _summary(replica: "Replica") -> str:
    """A row of a table: what it runs, on which kernel, with how many blocks."""
    pool = replica.scheduler.pool
    kernels = ", ".join(kernel.choice for kernel in replica.kernels)
    return f"{replica.model.name}\t{replica.engine_name}, {kernels}\t{pool.capacity:,} blocks of {pool.block_size}"
