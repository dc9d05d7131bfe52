"""How the figures came to be what they are: a point every few seconds, for an hour. It is this process's memory and
nobody else's: a router that begins anew begins with nothing."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from octet.rpc.plain import plain
from octet.v1 import overview_pb2 as wire
from router.view.compact import compact

STEP_SECONDS = 5.0
MOST_POINTS = 720
_DIGITS = 6
"""Of seconds and shares: nobody looks closer, and the points are many."""


@dataclass(frozen=True, slots=True)
class _Kept:
    point: wire.Point
    told: bytes
    """As JSON: what is made once is not made again for everybody who looks."""


class History:
    """Belongs to the event loop."""

    def __init__(self, step: float = STEP_SECONDS, most: int = MOST_POINTS) -> None:
        """Seconds between two points, and how many are kept."""
        self._step = step
        self._most = most
        self._points: dict[str, deque[_Kept]] = {}
        """By specialist, oldest first."""

    def add(self, overview: wire.Overview) -> None:
        """Specialists that are not in it are forgotten."""
        before = self._points
        self._points = {each.name: before.get(each.name) or deque(maxlen=self._most) for each in overview.specialists}
        for each in overview.specialists:
            point = _point(each, overview.at_unix_ms)
            self._points[each.name].append(_Kept(point, compact(plain(point))))

    def message(self, since_ms: int = 0) -> wire.History:
        history = wire.History(step_seconds=self._step)
        for name, points in self._points.items():
            history.specialists.add(name=name).points.extend(each.point for each in _since(points, since_ms))
        return history

    def told(self, since_ms: int = 0) -> bytes:
        """The same as JSON, as `plain` would have it."""
        told = (
            b'{"name":'
            + compact(name)
            + b',"points":['
            + b",".join(each.told for each in _since(points, since_ms))
            + b"]}"
            for name, points in self._points.items()
        )
        return b'{"step_seconds":' + compact(self._step) + b',"specialists":[' + b",".join(told) + b"]}"


def _since(points: Iterable[_Kept], since_ms: int) -> Iterator[_Kept]:
    return (each for each in points if each.point.at_unix_ms >= since_ms)


def _point(view: wire.SpecialistView, at_ms: int) -> wire.Point:
    loads = [replica.load for replica in view.replicas if replica.HasField("load")]
    blocks = sum(load.blocks.total for load in loads)
    point = wire.Point(
        at_unix_ms=at_ms,
        requests=round(view.rates.requests, _DIGITS),
        refused=round(view.rates.refused, _DIGITS),
        completion_tokens=round(view.rates.completion_tokens, _DIGITS),
        waiting=sum(load.waiting for load in loads),
        running=sum(load.running for load in loads),
    )
    _put(point, "ttft_p95", _p95(view.slo.ttft))
    _put(point, "itl_p95", _p95(view.slo.itl))
    _put(point, "admission_to_first_token_p95", _p95(view.slo.admission_to_first_token))
    _put(point, "pass_rate", view.breaker.pass_rate if view.breaker.HasField("pass_rate") else None)
    _put(point, "blocks_used", sum(load.blocks.used for load in loads) / blocks if blocks else None)
    _put(point, "cache_reuse", view.cache_reuse if view.HasField("cache_reuse") else None)
    _put(point, "burn", _burn(view.slo))
    return point


def _put(point: wire.Point, field: str, value: float | None) -> None:
    if value is not None:
        setattr(point, field, round(value, _DIGITS))


def _p95(latency: wire.Latency) -> float | None:
    return latency.p95 if latency.HasField("p95") else None


def _burn(slo: wire.Slo) -> float | None:
    shortest = (objective.burns[0] for objective in slo.objectives if objective.burns)
    return max((burn.rate for burn in shortest if burn.HasField("rate")), default=None)
