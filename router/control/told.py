"""Breakers, lanes and replicas as operators see them."""

from collections.abc import Mapping

from admission import correctness
from admission.lane import LaneRecord, lane_id
from admission.lanes import LaneBook
from admission.window import Counts
from octet.v1 import operator_pb2 as wire
from router.control.breakers import Breakers
from router.control.cordons import Cordons
from router.control.known import Known
from router.control.lane_books import LaneBooks
from router.control.seen import Seen


class Told:
    def __init__(self, known: Known, breakers: Breakers, lanes: LaneBooks, cordons: Cordons) -> None:
        self._known = known
        self._breakers = breakers
        self._lanes = lanes
        self._cordons = cordons

    def breaker(self, specialist: str, now: float) -> wire.BreakerInfo:
        """Of the lane that serves, or would."""
        standing, counts = self._breakers.standing(specialist), self._breakers.counts(specialist, now)
        info = self._measured(specialist, counts)
        info.state, info.hold = standing.state, standing.hold or ""
        info.hold_by, info.hold_why = standing.hold_by, standing.hold_why
        info.since_unix_ms = _ms(standing.hold_since if standing.hold else standing.since)
        outlook = correctness.outlook(standing, counts, now, self._breakers.rules(specialist))
        info.outlook = self._remarked(specialist, outlook)
        book = self._known.book(specialist)
        if book is not None:
            _put_lane(info, book.serving)
        return info

    def candidate(self, specialist: str, now: float) -> wire.BreakerInfo | None:
        """A candidate answers nobody: it is measured, and what follows from that is the lanes' to say."""
        book = self._known.book(specialist)
        if book is None or book.candidate is None:
            return None
        lane = book.candidate
        info = self._measured(specialist, self._known.judged.counts(lane_id(specialist, lane), now))
        info.state, info.since_unix_ms = "shadow_only", _ms(lane.since)
        info.outlook = self._outlook(book, lane, self._lanes.counts(book, now))
        _put_lane(info, lane)
        return info

    def lanes(self, specialist: str, now: float) -> list[wire.LaneInfo]:
        """Newest first."""
        book = self._known.book(specialist)
        if book is None:
            return []
        counts = self._lanes.counts(book, now)
        return [self.lane(book, lane, counts, now) for lane in reversed(book.lanes)]

    def lane(self, book: LaneBook, lane: LaneRecord, counts: Mapping[int, Counts], now: float) -> wire.LaneInfo:
        own = counts.get(lane.number) or self._known.judged.counts(lane_id(book.specialist, lane), now)
        info = wire.LaneInfo(
            specialist=book.specialist,
            number=lane.number,
            adapter=lane.name,
            digests=lane.digests,
            revision=lane.revision,
            status=lane.status,
            since_unix_ms=_ms(lane.since),
            by=lane.by,
            why=lane.why,
            samples=own.total,
            outlook=self._outlook(book, lane, counts),
            resident=len(self._known.holders(book.specialist, lane)),
            replicas=self._known.num_replicas(book.specialist),
        )
        if own.rate is not None:
            info.pass_rate = own.rate
        return info

    def replica(self, seen: Seen, cordoned: frozenset[str]) -> wire.ReplicaInfo:
        return wire.ReplicaInfo(
            name=seen.name,
            specialist=seen.specialist,
            address=seen.address,
            status="drained_by_operator" if seen.name in cordoned else seen.status,
            health_breaker=seen.health_breaker,
            waiting=seen.waiting,
            running=seen.running,
            shadows=seen.shadows,
            revision=seen.revision,
            refusing=seen.refusing,
            usual_wait=seen.usual_wait,
            estimate_error_p90=seen.estimate_error_p90,
        )

    def _measured(self, specialist: str, counts: Counts) -> wire.BreakerInfo:
        config, rules = self._known.ensemble.specialist(specialist), self._breakers.rules(specialist)
        info = wire.BreakerInfo(
            specialist=specialist,
            samples=counts.total,
            min_samples=rules.min_samples,
            window_seconds=rules.window,
            fallback=config.fallback or "",
            verifier=config.verify,
        )
        if counts.rate is not None:
            info.pass_rate = counts.rate
        if rules.floor is not None:
            info.floor = rules.floor
        return info

    def _outlook(self, book: LaneBook, lane: LaneRecord, counts: Mapping[int, Counts]) -> str:
        floor = self._known.ensemble.specialist(book.specialist).floor
        outlook = book.outlook(lane.number, counts, self._lanes.rules(), floor)
        return self._remarked(book.specialist, outlook) if lane.status == "serving" else outlook

    def _remarked(self, specialist: str, outlook: str) -> str:
        """With whatever keeps it from answering first."""
        remarks = [self._lanes.remark(specialist)]
        if self._cordons.leave_nobody(specialist):
            remarks.append("nobody is left to answer: drained by an operator")
        return "; ".join([*(each for each in remarks if each), outlook])


def _put_lane(info: wire.BreakerInfo, lane: LaneRecord) -> None:
    info.lane, info.lane_status = lane.number, lane.status
    info.adapters.extend(ref.name for ref in lane.adapters)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
