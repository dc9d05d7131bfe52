"""Weights of supervised replicas: order the supervisor to run what lanes need, and move lanes as replicas arrive."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from math import inf
from os import uname
from pathlib import Path

from admission import refresh as rules
from admission.lanes import LaneRecord, LaneUpdate, SpecialistLanes
from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.supervisor.weights import (
    RUNNING_FILE,
    WANTED_FILE,
    RunningWeights,
    WantedWeights,
    WeightsFile,
    running_from_json,
    wanted_to_json,
)
from router.control.replicas import ObservedReplica
from router.control.state import LANES, SharedState
from router.store.rows import CountBucket
from router.store.store import Store, read_documents

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
UNUSED_SECONDS = (
    10.0  # weights that no lane needs run this long: requests on their way to a replica may still need them
)
SUPERVISOR = "supervisor"  # counts that a supervisor adds to as long as it runs, so that others know of it
_SHOW_SECONDS, PRESENT_SECONDS = 5.0, 30.0
_SHOW_GRAIN = 60


class SupervisedWeights:
    """The router's side of the exchange with the supervisor. Without a supervisor, nothing is supervised."""

    def __init__(self, state: SharedState, store: Store, folder: Path | None, clock: Clock) -> None:
        self._state = state
        self._store = store
        self._folder = folder
        self._clock = clock
        self._seen: dict[str, float] = {}  # when other supervisors last showed that they run
        self._shown_at = -inf
        self._running_file = None if folder is None else WeightsFile(folder / RUNNING_FILE)
        self._wanted_file = None if folder is None else WeightsFile(folder / WANTED_FILE)
        self._running: Mapping[str, Mapping[int, RunningWeights]] = {}
        self._unused_since: dict[tuple[str, int], float] = {}
        self._kept: dict[str, tuple[WantedWeights, ...]] = {}  # what the supervisor was last told, by specialist

    @property
    def specialists(self) -> list[str]:
        return (
            [] if self._running_file is None else [name for name in self._state.ensemble.names if self.supervises(name)]
        )

    def supervises(self, specialist: str) -> bool:
        config = self._state.ensemble.specialist(specialist)
        return self._running_file is not None and not config.addresses and config.engine == "native"

    def others(self) -> list[str]:
        """Return the names of other supervisors that share the store. One of this machine has its folder here."""
        now, here = self._clock.now(), _supervisor_name("")
        seen = [name for name, at in self._seen.items() if now - at < PRESENT_SECONDS]
        return [name for name in seen if not name.startswith(here) or Path(name.removeprefix(here)).exists()]

    def put(self, buckets: Iterable[CountBucket], now: float) -> None:
        """Take counts from the store. A router that starts gets those of supervisors that have ended, too."""
        own, oldest = (
            "" if self._folder is None else _supervisor_name(self._folder),
            now - _SHOW_GRAIN - PRESENT_SECONDS,
        )
        found = {each.key for each in buckets if each.series == SUPERVISOR and each.start > oldest} - {own}
        self._seen.update(dict.fromkeys(found, self._clock.now()))

    def failed(self, specialist: str) -> dict[int, str]:
        """Return why weights could not be started, by number."""
        states = self._running.get(specialist, {})
        return {number: each.reason for number, each in states.items() if each.state == "failed"}

    def failed_here(self, lanes: SpecialistLanes) -> str:
        """Return why the weights of the serving lane could not be started; empty if they could."""
        weights = lanes.refresh.of_revision(lanes.serving.revision)
        return "" if weights is None else self.failed(lanes.specialist).get(weights.number, "")

    def waits_for_report(self, specialist: str) -> bool:
        """Whether it is not known yet which weights the supervisor runs."""
        return self.supervises(specialist) and not self._running.get(specialist)

    def is_expected(self, lanes: SpecialistLanes) -> bool:
        """Whether a supervisor runs the weights of the serving lane, so that a replica will hold them soon. If others
        share the store, it may be one of them: that the weights cannot be started here changes no lane."""
        weights = lanes.refresh.of_revision(lanes.serving.revision)
        if weights is None or not self.supervises(lanes.specialist):
            return False
        if lanes.refresh.configured != self._state.ensemble.specialist(lanes.specialist).model:
            return False
        if self.failed_here(lanes):
            return bool(self.others())
        running = self._running.get(lanes.specialist, {}).get(weights.number)
        others = (each.revision for each in self._arrived(lanes.specialist, weights.number))
        return running is not None and all(each == weights.revision for each in others)

    def sync(self, now: float) -> None:
        """Read what the supervisor runs, tell it what to run, and let the fleet have the replicas."""
        if self._folder is None or self._running_file is None or self._wanted_file is None:
            return
        if self._clock.now() - self._shown_at >= _SHOW_SECONDS:
            self._shown_at, start = self._clock.now(), int(now // _SHOW_GRAIN) * _SHOW_GRAIN
            self._store.count(CountBucket(SUPERVISOR, _supervisor_name(self._folder), start, 1, 0))
        content = self._running_file.read()
        if content is not None:
            self._running = running_from_json(content)
        for specialist in self.specialists:
            self._kept[specialist] = self._keep(specialist)
            running = self._running.get(specialist, {}).items()
            present = [number for number, each in running if each.state == "ready" or number == 0]
            numbers = {each.number for each in self._kept[specialist]} or set(present)
            placed = sorted(numbers.intersection(present))
            if placed:
                self._state.replicas.place(specialist, placed)
        self._wanted_file.write(wanted_to_json({name: kept for name, kept in self._kept.items() if kept}))

    def next_update(self, lanes: SpecialistLanes, now: float) -> LaneUpdate | None:
        """Return the update of lanes that the supervisor's reports and the replicas' allow; None if there is none."""
        refresh = lanes.refresh
        for number, reason in self.failed(lanes.specialist).items():
            failed = rules.weights_failed(lanes, number, reason, now)
            if failed is not None:
                return failed
        if refresh.coming:
            arrived = self._arrived(lanes.specialist, refresh.coming)
            running = self._running.get(lanes.specialist, {}).get(refresh.coming)
            if arrived and running is not None and running.state == "ready":
                return rules.weights_arrived(lanes, refresh.coming, min(each.revision for each in arrived), now)
        previous = lanes.previous if rules.is_returning(lanes) else None
        if previous is not None and self._state.holders(lanes.specialist, previous):
            return rules.finish_return(lanes, now)
        return None

    def unfit(self, specialist: str, lane: LaneRecord) -> Iterable[str]:
        """Yield the names of supervised replicas whose weights are not the lane's, or not known yet."""
        lanes = self._state.lanes(specialist)
        if lanes is None or not self.supervises(specialist):
            return
        for each in self._state.all_replicas(specialist):
            weights = lanes.refresh.numbered(each.weights)
            if (weights is None and each.weights) or (weights is not None and weights.revision != lane.revision):
                yield each.name

    async def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Wait until `is_over`, at most this long. Return whether it is."""
        end = self._clock.now() + seconds
        while not is_over() and self._clock.now() < end:
            await asyncio.sleep(_POLL_SECONDS)
        return is_over()

    def _arrived(self, specialist: str, number: int) -> list[ObservedReplica]:
        return [each for each in self._state.reachable(specialist) if each.weights == number and each.revision]

    def _keep(self, specialist: str) -> tuple[WantedWeights, ...]:
        """Return the weights that should run: those that are wanted, and those that were until a short time ago."""
        lanes, config = self._state.lanes(specialist), self._state.ensemble.specialist(specialist)
        if lanes is None:
            return ()
        failed, now = self.failed(specialist), self._clock.now()
        found = rules.wanted_weights(lanes, config.model, failed)
        if not found:
            return ()
        serving = lanes.refresh.of_revision(lanes.serving.revision)
        like = config.model if serving is None else serving.model
        wanted = [
            WantedWeights(each.number, each.model, each.revision if each.number else "", like if each.number else "")
            for each in found
        ]
        numbers = {each.number for each in wanted}
        for old in self._kept.get(specialist, ()):
            key = (specialist, old.number)
            if old.number in numbers or old.number in failed:
                self._unused_since.pop(key, None)
            elif now - self._unused_since.setdefault(key, now) < UNUSED_SECONDS:
                wanted.append(old)
        return tuple(sorted(wanted, key=lambda each: each.number))


def _supervisor_name(folder: Path | str) -> str:
    return f"{uname().nodename}:{folder}"


def remembered_weights(ensemble: Ensemble) -> dict[str, list[WantedWeights]]:
    """Return the weights that each specialist ran last, from the store, for specialists that no longer run only the
    configured ones. Raises StoreConnectionLost or BadStoreUrl."""
    found = {}
    for specialist, body in read_documents(ensemble, LANES).items():
        if specialist not in ensemble.names:
            continue
        model = ensemble.specialist(specialist).model
        weights = rules.wanted_weights(SpecialistLanes.from_body(body), model)
        if any(each.number for each in weights):
            found[specialist] = [
                WantedWeights(each.number, each.model, each.revision if each.number else "") for each in weights
            ]
    return found
