"""A control plane in memory: breakers, knobs, lanes and replicas, with audit and events."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from octet.rpc.refusal import Refusal, invalid_field
from octet.v1 import error_pb2, inference_pb2
from octet.v1 import operator_pb2 as wire
from router.control.audit import conflict, unknown_name
from router.control.control import OperatorEvents
from router.refusals import unknown_request
from router.store.rows import ReceiptQuery

SPECIALISTS = ("stl", "template", "debug")
REPLICAS = ("stl", "template-0", "template-1", "debug")
NOW_MS = 1_700_000_000_000


class FakeControl:
    def __init__(self) -> None:
        self.store_trouble = ""
        self.events = OperatorEvents()
        self.entries: list[wire.AuditEntry] = []
        self.slow: asyncio.Event | None = None
        """If given, changes wait until this event is set."""
        self._breakers = {name: _breaker(name) for name in SPECIALISTS}
        self._knobs = {
            f"{intent}.{knob}": wire.KnobInfo(
                name=f"{intent}.{knob}", value=value, configured=value, set_by="configuration"
            )
            for intent in ("review", "unspecified")
            for knob, value in (("shadow_threshold", 0.5), ("priority_floor", 0.0))
        }
        self._lanes = {name: [_lane(name, 1, "", "serving")] for name in SPECIALISTS}
        self._replicas = {name: _replica(name) for name in REPLICAS}

    def breakers(self) -> list[wire.BreakerInfo]:
        return list(self._breakers.values())

    def knobs(self) -> list[wire.KnobInfo]:
        return list(self._knobs.values())

    def lanes(self, specialist: str = "") -> list[wire.LaneInfo]:
        found = self._lanes if not specialist else {specialist: _found("specialist", specialist, self._lanes)}
        return [lane for lanes in found.values() for lane in reversed(lanes)]

    def replicas(self) -> list[wire.ReplicaInfo]:
        return list(self._replicas.values())

    async def hold_breaker(self, specialist: str, hold: str, *, who: str, why: str) -> wire.BreakerInfo:
        breaker: wire.BreakerInfo = _found("specialist", specialist, self._breakers)
        if hold not in ("open", "closed"):
            raise invalid_field("hold", "open or closed", repr(hold))
        await self._write("hold_breaker", specialist, breaker.hold, hold, who, why)
        breaker.hold, breaker.hold_by, breaker.hold_why = hold, who, why
        return breaker

    async def release_breaker(self, specialist: str, *, who: str, why: str) -> wire.BreakerInfo:
        breaker: wire.BreakerInfo = _found("specialist", specialist, self._breakers)
        if not breaker.hold:
            raise conflict(f"the breaker of {specialist} is not held", "specialist")
        await self._write("release_breaker", specialist, breaker.hold, "", who, why)
        breaker.hold = breaker.hold_by = breaker.hold_why = ""
        return breaker

    async def relearn_floor(self, specialist: str, *, who: str, why: str) -> wire.BreakerInfo:
        breaker: wire.BreakerInfo = _found("specialist", specialist, self._breakers)
        await self._write("relearn_floor", specialist, f"{breaker.floor:g}", "", who, why)
        breaker.ClearField("floor")
        breaker.floor_learned = False
        return breaker

    async def set_knob(self, name: str, value: float, *, who: str, why: str) -> wire.KnobInfo:
        knob: wire.KnobInfo = _found("name", name, self._knobs)
        await self._write("set_knob", name, f"{knob.value:g}", f"{value:g}", who, why)
        knob.value, knob.set_by, knob.why, knob.since_unix_ms = value, who, why, NOW_MS
        return knob

    async def release_knob(self, name: str, *, who: str, why: str) -> wire.KnobInfo:
        knob: wire.KnobInfo = _found("name", name, self._knobs)
        if knob.set_by == "configuration":
            raise conflict(f"{name} is not set by an operator", "name")
        await self._write("release_knob", name, f"{knob.value:g}", f"{knob.configured:g}", who, why)
        knob.value, knob.set_by, knob.why, knob.since_unix_ms = knob.configured, "configuration", "", 0
        return knob

    async def load_adapter(self, specialist: str, path: str, name: str, *, who: str, why: str) -> wire.LaneInfo:
        lanes: list[wire.LaneInfo] = _found("specialist", specialist, self._lanes)
        if lanes[-1].status == "candidate":
            raise conflict(f"{specialist} has a candidate already: promote it, or roll it back")
        lane = _lane(specialist, len(lanes) + 1, name or path.rpartition("/")[2], "candidate")
        await self._write("load_lane", specialist, "", lane.adapter, who, why)
        lanes.append(lane)
        return lane

    async def refresh(self, specialist: str, model: str, digest: str, *, who: str, why: str) -> wire.LaneInfo:
        lanes: list[wire.LaneInfo] = _found("specialist", specialist, self._lanes)
        await self._write("refresh", specialist, "", model, who, why)
        lanes.append(_lane(specialist, len(lanes) + 1, "", "candidate"))
        return lanes[-1]

    async def promote(self, specialist: str, name: str, *, who: str, why: str) -> wire.LaneInfo:
        lanes: list[wire.LaneInfo] = _found("specialist", specialist, self._lanes)
        candidate = lanes[-1]
        if candidate.status != "candidate":
            raise conflict(f"{specialist} has no candidate: load one with octet adapters load")
        if name not in ("", candidate.adapter):
            raise unknown_name("name", name, [candidate.adapter])
        await self._write("promote", specialist, lanes[-2].adapter, candidate.adapter, who, why)
        lanes[-2].status, candidate.status = "previous", "serving"
        return candidate

    async def roll_back(self, specialist: str, *, who: str, why: str) -> wire.LaneInfo:
        lanes: list[wire.LaneInfo] = _found("specialist", specialist, self._lanes)
        if len(lanes) == 1:
            raise conflict(f"{specialist} has no lane to go back to")
        gone = lanes.pop()
        await self._write("roll_back", specialist, gone.adapter, lanes[-1].adapter, who, why)
        lanes[-1].status = "serving"
        return lanes[-1]

    async def drain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo:
        return await self._move("drain", replica, "drained_by_operator", who, why)

    async def undrain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo:
        return await self._move("undrain", replica, "serving", who, why)

    async def audit(self, most: int, subject: str) -> list[wire.AuditEntry]:
        wanted = [entry for entry in self.entries if subject in ("", entry.subject)]
        return wanted[::-1][:most]

    async def _move(self, what: str, name: str, status: str, who: str, why: str) -> wire.ReplicaInfo:
        replica: wire.ReplicaInfo = _found("replica", name, self._replicas)
        await self._write(what, name, replica.status, status, who, why)
        replica.status = status
        return replica

    async def _write(self, what: str, subject: str, before: str, after: str, who: str, why: str) -> None:
        if self.store_trouble:
            raise Refusal(error_pb2.ERROR_REASON_STORE_UNAVAILABLE, "it could not be stored")
        if self.slow is not None:
            await self.slow.wait()
        entry = wire.AuditEntry(
            number=len(self.entries) + 1,
            at_unix_ms=NOW_MS,
            who=who,
            why=why,
            what=what,
            subject=subject,
            before=before,
            after=after,
        )
        self.entries.append(entry)
        self.events.publish(wire.OperatorEvent(at_unix_ms=NOW_MS, audit=entry))


class FakeReceipts:
    """Receipts, newest first, and explanations by request id."""

    def __init__(self) -> None:
        self.receipts: list[bytes] = []
        self.stories: dict[str, wire.Story] = {}
        self.asked: list[ReceiptQuery] = []

    async def newest(self, query: ReceiptQuery) -> list[bytes]:
        self.asked.append(query)
        return self.receipts[: query.most]

    async def find(self, request_id: str, tenant: str, own: str) -> inference_pb2.Receipt:
        if request_id not in self.stories:
            raise unknown_request(request_id)
        return self.stories[request_id].receipt

    async def explain(self, receipt: inference_pb2.Receipt, fallback: str) -> wire.Story:
        return next(story for story in self.stories.values() if story.receipt == receipt)


class FakeComparisons:
    """Comparisons that are read on demand."""

    def __init__(self, comparisons: Iterable[wire.Comparison] = ()) -> None:
        self.comparisons_kept = list(comparisons)
        self.num_read = 0
        self.num_open = 0

    async def comparisons(self, since_ms: int) -> AsyncGenerator[bytes, None]:
        self.num_open += 1
        try:
            for comparison in self.comparisons_kept:
                if comparison.at_unix_ms >= since_ms:
                    self.num_read += 1
                    yield comparison.SerializeToString()
                await asyncio.sleep(0)
        finally:
            self.num_open -= 1


def _found(field: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise unknown_name(field, name, known)
    return known[name]


def _breaker(name: str) -> wire.BreakerInfo:
    return wire.BreakerInfo(
        specialist=name,
        lane=1,
        lane_status="serving",
        state="closed",
        since_unix_ms=NOW_MS,
        pass_rate=0.97,
        samples=120,
        floor=0.9,
        min_samples=20,
        window_seconds=86_400,
        fallback="debug" if name != "debug" else "",
        outlook="sound",
        verifier="cpp",
    )


def _lane(specialist: str, number: int, adapter: str, status: str) -> wire.LaneInfo:
    return wire.LaneInfo(
        specialist=specialist,
        number=number,
        adapter=adapter,
        revision="r" * 64,
        status=status,
        since_unix_ms=NOW_MS,
        by="configuration",
        resident=1,
        replicas=1,
    )


def _replica(name: str) -> wire.ReplicaInfo:
    return wire.ReplicaInfo(
        name=name,
        specialist=name.partition("-")[0],
        address="unix:/run/x.sock",
        status="serving",
        health_breaker="closed",
        running=2,
        usual_wait=0.25,
    )
