"""Keep the adapters of every lane loaded on the replicas, and unload the unused ones."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import grpc

from admission.lanes import HELD_STATES, AdapterRef, SpecialistLanes
from octet.background import cancel_tasks, run_in_background
from octet.clock import Clock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.control.replicas import ObservedReplica
from router.control.state import SharedState, has_model

_log = logging.getLogger(__name__)
UNUSED_SECONDS = 5.0  # an unused adapter stays loaded this long: requests on their way to a replica may still name it
# an adapter with a generated name that no lane knows stays loaded this long: a router may be about to store its lane
STRAY_SECONDS = 120.0
_REPORT_TRIES = 40
_REPORT_SECONDS = 0.05
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
# refusals with these codes would be repeated by the same replica
_PERMANENT = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
_LOAD_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}\.[0-9]+-[0-9a-f]{4}")
# the last argument is the digest that the replica found instead of the lane's
ReportWrongAdapter = Callable[[ObservedReplica, AdapterRef, str], Awaitable[None]]


def make_load_name(name: str, number: int, token: str) -> str:
    """Make a name that is unique to one load. `token` is four hex digits that distinguish simultaneous loads."""
    return f"{name}.{number}-{token}"


def is_generated_load_name(name: str) -> bool:
    return _LOAD_NAME.fullmatch(name) is not None


class AdapterSync:
    def __init__(
        self, state: SharedState, clock: Clock, report_wrong: ReportWrongAdapter, unused_seconds: float = UNUSED_SECONDS
    ) -> None:
        self._state = state
        self._clock = clock
        self._report_wrong = report_wrong
        self._unused_seconds = unused_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by replica
        self._installing: set[str] = set()
        self._ours: dict[str, str] = {}  # adapters that this router loaded: specialist by load name
        self._unused_since: dict[tuple[str, str], float] = {}
        self._delays: dict[tuple[str, str], tuple[float, float]] = {}  # time of the next try, and the pause before it
        self._reported_wrong: set[tuple[str, str, str]] = set()

    @asynccontextmanager
    async def installing(self, specialist: str, load_name: str, path: str) -> AsyncIterator[str]:
        """Load an adapter on all reachable replicas and yield its digest. If loading or the `with` body fails, unload
        it again. Raises Refusal if it cannot be loaded, or if its files differ between replicas."""
        self._installing.add(load_name)
        self._ours[load_name] = specialist
        names = [each.name for each in self._state.reachable(specialist)]
        try:
            yield await self._load_everywhere(specialist, names, load_name, path)
        except BaseException:
            await asyncio.gather(*(self._unload(name, load_name) for name in names))
            raise
        finally:
            self._installing.discard(load_name)

    async def wait_reported(self, specialist: str, load_name: str) -> None:
        """Wait until every reachable replica reports the adapter, or give up after two seconds."""
        for _ in range(_REPORT_TRIES):
            self._state.refresh()
            if all(load_name in replica.adapters for replica in self._state.reachable(specialist)):
                return
            await asyncio.sleep(_REPORT_SECONDS)

    def sync(self) -> None:
        for name in self._state.ensemble.names:
            for replica in self._state.reachable(name):
                self._state.note_loaded(replica)
                if replica.name not in self._tasks and (self._to_load(replica) or self._to_unload(replica)):
                    syncing = self._sync_replica(replica)
                    self._tasks[replica.name] = run_in_background(syncing, f"adapters of {replica.name}")

    async def close(self) -> None:
        await cancel_tasks(*self._tasks.values())

    async def _load_everywhere(self, specialist: str, names: list[str], load_name: str, path: str) -> str:
        found = await asyncio.gather(*(self._load(name, load_name, path) for name in names))
        digests = {name: each for name, each in zip(names, found, strict=True) if isinstance(each, str)}
        for each in found:
            if isinstance(each, Refusal) and each.code is not grpc.StatusCode.UNAVAILABLE:
                raise each
        if not digests:
            message = f"no replica of {specialist} can be reached to load the adapter"
            raise Refusal(error_pb2.ERROR_REASON_NO_REPLICA, message)
        if len(set(digests.values())) > 1:
            contents = ", ".join(f"{replica} has digest {digest[:12]}" for replica, digest in sorted(digests.items()))
            message = f"the replicas of {specialist} see different files under this path: {contents}"
            reason, limit = error_pb2.ERROR_REASON_ADAPTER_REFUSED, "the same content on every replica"
            raise Refusal(reason, message, field="path", limit=limit)
        return next(iter(digests.values()))

    async def _load(self, replica: str, load_name: str, path: str) -> str | Refusal:
        try:
            return await self._state.replicas.load(replica, load_name, path)
        except Refusal as refusal:
            return refusal

    async def _unload(self, replica: str, load_name: str) -> None:
        """Unload an adapter. If that fails, the next `sync` tries again."""
        with suppress(Refusal):
            await self._state.replicas.unload(replica, load_name)

    async def _sync_replica(self, replica: ObservedReplica) -> None:
        try:
            for load_name in self._to_unload(replica):
                await self._unload(replica.name, load_name)
                self._unused_since.pop((replica.name, load_name), None)
            for ref in self._to_load(replica):
                await self._reload(replica, ref)
        finally:
            del self._tasks[replica.name]

    async def _reload(self, replica: ObservedReplica, ref: AdapterRef) -> None:
        key = (replica.name, ref.load_name)
        found = await self._load(replica.name, ref.load_name, ref.path)
        if isinstance(found, str) and found == ref.digest:
            self._delays.pop(key, None)
            _log.info("%s has loaded %s again", replica.name, ref.load_name)
            return
        pause = min(self._delays[key][1] * 2, _LONGEST_PAUSE) if key in self._delays else _FIRST_PAUSE
        self._delays[key] = (self._clock.now() + pause, pause)
        if isinstance(found, Refusal):
            _log.warning("%s cannot load %s: %s", replica.name, ref.load_name, found)
            if found.code in _PERMANENT:
                self._state.unloadable[key] = ref.digest
            return
        self._state.unloadable[key] = ref.digest
        await self._unload(replica.name, ref.load_name)
        if (*key, found) not in self._reported_wrong:
            self._reported_wrong.add((*key, found))
            await self._report_wrong(replica, ref, found)

    def _to_load(self, replica: ObservedReplica) -> list[AdapterRef]:
        wanted = _wanted(self._state.lanes(replica.specialist), replica)
        missing = [ref for ref in wanted if ref.load_name not in replica.adapters]
        now = self._clock.now()
        return [ref for ref in missing if now >= self._delays.get((replica.name, ref.load_name), (now, 0.0))[0]]

    def _to_unload(self, replica: ObservedReplica) -> list[str]:
        """List the replica's adapters that no lane has used for a while, or whose content differs from the lane's."""
        lanes = self._state.lanes(replica.specialist)
        if lanes is None:
            return []
        wanted = {ref.load_name: ref.digest for ref in _wanted(lanes, replica)}
        found, now = [], self._clock.now()
        for name, digest in replica.adapters.items():
            is_used = wanted.get(name) == digest or name in self._installing
            keep_seconds = None if is_used else self._seconds_to_keep(name, lanes)
            if keep_seconds is None:
                self._unused_since.pop((replica.name, name), None)
            else:
                since = self._unused_since.setdefault((replica.name, name), now)
                if now - since >= keep_seconds or name in wanted:
                    found.append(name)
        return found

    def _seconds_to_keep(self, load_name: str, lanes: SpecialistLanes) -> float | None:
        is_known = any(ref.load_name == load_name and ref.path for lane in lanes.lanes for ref in lane.adapters)
        if is_known or self._ours.get(load_name) == lanes.specialist:
            return self._unused_seconds  # a router loaded it, not the replica at its start or another program
        config = self._state.ensemble.specialist(lanes.specialist)
        is_configured = load_name in config.adapters or load_name in config.use_adapters
        is_stray = is_generated_load_name(load_name) and not is_configured
        return max(STRAY_SECONDS, self._unused_seconds) if is_stray else None


def _wanted(lanes: SpecialistLanes | None, replica: ObservedReplica) -> Iterator[AdapterRef]:
    for lane in () if lanes is None else lanes.lanes:
        if lane.status in HELD_STATES and has_model(replica, lane):
            yield from (ref for ref in lane.adapters if ref.path)
