"""A router's view, from its own parts."""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Protocol

from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2
from router.replicas.fleet import Fleet
from router.view.agreement import Agreement
from router.view.audit_tail import AuditTail
from router.view.cache_reuse import CacheReuse
from router.view.composer import Parts
from router.view.sources import Controlled, Slos
from router.view.traffic import Traffic
from router.view.view import View


class Behind(Protocol):
    """What goes on beside the requests."""

    @property
    def control(self) -> Controlled: ...

    @property
    def agreement(self) -> Agreement: ...

    def shadow_counts(self) -> wire.ShadowCounts: ...


def open_view(
    ensemble: Ensemble, behind: Behind, fleet: Fleet, clock: Clock, wall_ms: Callable[[], int], *, slos: Slos | None
) -> View:
    def loads() -> Mapping[str, specialist_pb2.LoadReport]:
        return {each.name: each.report for each in fleet.replicas if each.linked and each.report is not None}

    parts = Parts(
        control=behind.control,
        loads=loads,
        slos=slos,
        shadow_counts=behind.shadow_counts,
        agreement=behind.agreement,
        audit=AuditTail(behind.control),
        traffic=Traffic(clock),
        cache=CacheReuse(clock),
        version=version("octet"),
    )
    return View(parts, ensemble, clock, wall_ms)
