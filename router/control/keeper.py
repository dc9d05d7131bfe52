"""Every replica holds the adapters of the lanes it may be asked for: what is missing is loaded, what nobody wants any
more goes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import grpc

from admission.lane import HELD, AdapterRef
from admission.lanes import LaneBook
from octet.clock import Clock
from octet.rpc.refusal import Refusal
from router.background import background
from router.control.known import Known
from router.control.load_names import is_made_here
from router.control.refusals import nobody_to_load, not_the_same
from router.control.seen import Seen

_log = logging.getLogger(__name__)
LINGER = 5.0
"""Seconds that an adapter nobody wants stays: requests on their way to a replica still ask for it."""
STRAY = 120.0
"""Seconds that an adapter with a name like those made here stays which no lane knows: some router may still be about
to write its lane down, or has ended in the middle of it."""
_REPORT_TRIES = 40
_REPORT_SECONDS = 0.05
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_FOR_GOOD = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
"""How a replica refuses what it would refuse again."""
Wrong = Callable[[Seen, AdapterRef, str], Awaitable[None]]
"""A replica has another content than the lane's, whose digest is told."""


@dataclass(frozen=True, slots=True)
class _Patience:
    until: float
    pause: float


class Keeper:
    """Belongs to the event loop."""

    def __init__(self, known: Known, clock: Clock, wrong: Wrong, linger: float = LINGER) -> None:
        self._known = known
        self._clock = clock
        self._wrong = wrong
        self._linger = linger
        self._tending: dict[str, asyncio.Task[None]] = {}
        """By replica."""
        self._installing: set[str] = set()
        self._ours: dict[str, str] = {}
        """Adapters that were loaded from here, by name: the specialist."""
        self._unwanted_since: dict[tuple[str, str], float] = {}
        self._patience: dict[tuple[str, str], _Patience] = {}
        self._told_wrong: set[tuple[str, str, str]] = set()

    @asynccontextmanager
    async def installing(self, specialist: str, load_name: str, path: str) -> AsyncIterator[str]:
        """Loaded at every replica that can be reached, all with the digest that is handed out. Whatever is raised
        here or inside, it goes again. Raises Refusal."""
        self._installing.add(load_name)
        self._ours[load_name] = specialist
        names = [each.name for each in self._known.seen(specialist)]
        try:
            yield await self._loaded(specialist, names, load_name, path)
        except BaseException:
            await asyncio.gather(*(self._unload(name, load_name) for name in names))
            raise
        finally:
            self._installing.discard(load_name)

    async def reported(self, specialist: str, load_name: str) -> None:
        """Until every replica that can be reached says that it has it, or for as long as a few reports take: whoever
        promotes it at once finds it there."""
        for _ in range(_REPORT_TRIES):
            self._known.look()
            if all(load_name in seen.adapters for seen in self._known.seen(specialist)):
                return
            await asyncio.sleep(_REPORT_SECONDS)

    def look(self) -> None:
        """Begin what there is to do, at every replica that is not busy with it."""
        everybody = (seen for name in self._known.ensemble.names for seen in self._known.seen(name))
        for seen in everybody:
            self._known.found(seen)
            if seen.name not in self._tending and self._has_work(seen):
                task = background(self._tend(seen), f"adapters of {seen.name}")
                self._tending[seen.name] = task
                task.add_done_callback(partial(self._tended, seen.name))

    async def close(self) -> None:
        tasks = list(self._tending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loaded(self, specialist: str, names: list[str], load_name: str, path: str) -> str:
        """The digest. Those that cannot be reached get it later."""
        found = await asyncio.gather(*(self._load(name, load_name, path) for name in names))
        digests = {name: each for name, each in zip(names, found, strict=True) if isinstance(each, str)}
        for each in found:
            if isinstance(each, Refusal) and each.code is not grpc.StatusCode.UNAVAILABLE:
                raise each
        if not digests:
            raise nobody_to_load(specialist)
        if len(set(digests.values())) > 1:
            raise not_the_same(specialist, digests)
        return next(iter(digests.values()))

    async def _load(self, replica: str, load_name: str, path: str) -> str | Refusal:
        try:
            return await self._known.replicas.load(replica, load_name, path)
        except Refusal as refusal:
            return refusal

    async def _unload(self, replica: str, load_name: str) -> None:
        """One that is not there, or cannot be reached, is left to the next look."""
        with suppress(Refusal):
            await self._known.replicas.unload(replica, load_name)

    def _tended(self, replica: str, _: "asyncio.Task[None]") -> None:
        self._tending.pop(replica, None)

    def _has_work(self, seen: Seen) -> bool:
        return bool(self._to_load(seen)) or bool(self._to_unload(seen))

    async def _tend(self, seen: Seen) -> None:
        for load_name in self._to_unload(seen):
            await self._unload(seen.name, load_name)
            self._unwanted_since.pop((seen.name, load_name), None)
        for ref in self._to_load(seen):
            await self._bring(seen, ref)

    async def _bring(self, seen: Seen, ref: AdapterRef) -> None:
        found = await self._load(seen.name, ref.load_name, ref.path)
        if isinstance(found, str) and found == ref.digest:
            self._patience.pop((seen.name, ref.load_name), None)
            _log.info("%s has %s again", seen.name, ref.load_name)
            return
        self._wait(seen.name, ref.load_name)
        if isinstance(found, Refusal):
            _log.warning("%s does not load %s: %s", seen.name, ref.load_name, found)
            if found.code in _FOR_GOOD:
                self._known.lost[seen.name, ref.load_name] = ref.digest
            return
        self._known.lost[seen.name, ref.load_name] = ref.digest
        await self._unload(seen.name, ref.load_name)
        await self._tell_wrong(seen, ref, found)

    async def _tell_wrong(self, seen: Seen, ref: AdapterRef, digest: str) -> None:
        """Once."""
        what = (seen.name, ref.load_name, digest)
        if what not in self._told_wrong:
            self._told_wrong.add(what)
            await self._wrong(seen, ref, digest)

    def _wait(self, replica: str, load_name: str) -> None:
        """Longer with every time it failed."""
        before = self._patience.get((replica, load_name))
        pause = _FIRST_PAUSE if before is None else min(before.pause * 2, _LONGEST_PAUSE)
        self._patience[(replica, load_name)] = _Patience(self._clock.now() + pause, pause)

    def _to_load(self, seen: Seen) -> list[AdapterRef]:
        book = self._known.book(seen.specialist)
        return [ref for ref in _wanted(book, seen) if ref.load_name not in seen.adapters and self._may_try(seen, ref)]

    def _may_try(self, seen: Seen, ref: AdapterRef) -> bool:
        patience = self._patience.get((seen.name, ref.load_name))
        return patience is None or self._clock.now() >= patience.until

    def _to_unload(self, seen: Seen) -> list[str]:
        """What was loaded for a lane that nobody wants any more, for a while; what was loaded for one that there never
        was, for longer; and what has not the lane's content."""
        book = self._known.book(seen.specialist)
        if book is None:
            return []
        wanted = {ref.load_name: ref.digest for ref in _wanted(book, seen)}
        found = []
        for name, digest in seen.adapters.items():
            is_kept = wanted.get(name) == digest or name in self._installing
            linger = None if is_kept else self._patience_with(name, book)
            if linger is None:
                self._unwanted_since.pop((seen.name, name), None)
            elif self._has_lingered(seen.name, name, linger) or name in wanted:
                found.append(name)
        return found

    def _patience_with(self, load_name: str, book: LaneBook) -> float | None:
        """Seconds that one which nobody wants stays; None: for good."""
        if self._is_ours(load_name, book):
            return self._linger
        config = self._known.ensemble.specialist(book.specialist)
        is_configured = load_name in config.adapters or load_name in config.use_adapters
        return None if is_configured or not is_made_here(load_name) else max(STRAY, self._linger)

    def _is_ours(self, load_name: str, book: LaneBook) -> bool:
        """What replicas load by themselves at their start, or somebody else has them load, is not."""
        if self._ours.get(load_name) == book.specialist:
            return True
        return any(ref.load_name == load_name and ref.path for lane in book.lanes for ref in lane.adapters)

    def _has_lingered(self, replica: str, load_name: str, linger: float) -> bool:
        now = self._clock.now()
        return now - self._unwanted_since.setdefault((replica, load_name), now) >= linger


def _wanted(book: LaneBook | None, seen: Seen) -> Iterator[AdapterRef]:
    """What can be loaded there: of the lanes on the replica's own model."""
    for lane in () if book is None else book.lanes:
        if lane.status in HELD and (not lane.revision or not seen.revision or lane.revision == seen.revision):
            yield from (ref for ref in lane.adapters if ref.path)
