"""Requests that were there when replicas died. One that takes its replica with it is not handed from replica to replica
until none is left.

Whatever was in flight on a replica when its connection broke is a suspect: known by the hash of its content, for a
time. So is what was given up shortly before: a caller that hangs up has asked all the same. A replica that had said it
would drain, or whose same process is heard of again, did not die, and nobody is blamed for it. Whoever is answered
whole is no suspect any more.

A suspect is run with care: one at a time on a replica until its first token. When a replica dies with a suspect on
trial, that one is blamed alone, and its neighbours are not. After two deaths a content is refused, and nobody is asked;
but one of them must have come when it was sent as a suspect. What many ask at once is on many replicas, and where those
die of something else it is tried before it is refused.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from octet.clock import Clock
from router.refusals import quarantined
from router.replicas.link import Link

_log = logging.getLogger(__name__)
MOST_DEATHS = 2
"""With the same content. There is no third."""
MOST_KNOWN = 4096
"""Contents. Beyond it the oldest suspect is forgotten before anybody who is refused."""
PATIENCE_SECONDS = 1.0
"""For which a suspect waits until no other is on trial at its replica; then it goes all the same."""
_SHOWN = 16
Content: TypeAlias = Callable[[], bytes]
"""The hash of what is asked, computed where it is needed: nobody pays for it while no replica dies."""


class Trial:
    """One suspect at one replica, until its first token."""

    def __init__(self, link: Link, digest: bytes, *, has_turn: bool) -> None:
        """The link's turn, where it has it, is its own."""
        self._link = link
        self._digest = digest
        self._has_turn = has_turn
        self._runs = True
        link.on_trial.append(digest)

    def over(self) -> None:
        """It has brought a token, or ended without harm."""
        if self._runs:
            self._link.on_trial.remove(self._digest)
            self._end()

    def lost(self) -> None:
        """The link broke under it, and says so to whoever was there."""
        if self._runs:
            self._end()

    def _end(self) -> None:
        self._runs = False
        if self._has_turn:
            self._link.turn.release()


@dataclass(slots=True)
class _Record:
    died: float
    """When the last one did."""
    links: dict[Link, bool] = field(default_factory=dict)
    """Those that were lost, and whether it was sent there as a suspect."""

    @property
    def num_deaths(self) -> int:
        """One at most that came before it was suspected."""
        tried = [is_tried for link, is_tried in self.links.items() if link.is_death]
        return sum(tried) + (not all(tried))

    @property
    def is_quarantined(self) -> bool:
        return self.num_deaths >= MOST_DEATHS


class Quarantine:
    """Belongs to the event loop."""

    def __init__(self, clock: Clock, seconds: Callable[[], float], most: int = MOST_KNOWN) -> None:
        """What is known of a content is forgotten so many seconds after its last death; 0: nobody is ever blamed."""
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        """Those that died last at the end."""

    def __len__(self) -> int:
        return len(self._records)

    def check(self, content: Content) -> None:
        """Raises Refusal for what is not asked of anybody any more."""
        record = self._find(content)
        if record is not None and record.is_quarantined:
            raise quarantined(record.num_deaths, record.died + self._seconds() - self._clock.now())

    def suspects(self, content: Content) -> bool:
        record = self._find(content)
        return record is not None and record.num_deaths > 0

    async def trial(self, content: Content, link: Link) -> Trial | None:
        """None for whoever is no suspect, and where the link is lost. One that has waited long enough for its turn goes
        beside whoever has it. Raises Refusal for one that is refused by now."""
        if not self.suspects(content):
            return None
        has_turn = await _takes_turn(link)
        try:
            self.check(content)
            if link.lost:
                return None
            trial = Trial(link, content(), has_turn=has_turn)
            has_turn = False
            return trial
        finally:
            if has_turn:
                link.turn.release()

    def died_with(self, content: Content, link: Link, *, tried: bool = False) -> None:
        """The link broke with it in flight; `tried`: it had been sent as a suspect."""
        link.lose(self._clock.now())
        self._blame(content, link, tried)

    def left(self, content: Content, link: Link, *, tried: bool = False) -> None:
        """It was in flight and is not any more, and it is not known to have ended well. It was there if the link is
        lost soon."""
        if self._seconds() > 0:
            digest = content()
            link.left(self._clock.now(), lambda: self._blame(lambda: digest, link, tried))

    def _blame(self, content: Content, link: Link, tried: bool) -> None:
        if self._seconds() <= 0:
            return
        digest = content()
        if link.drained or (link.on_trial and digest not in link.on_trial):
            return
        tried = tried or digest in link.on_trial
        record = self._records.setdefault(digest, _Record(0.0))
        record.died = self._clock.now()
        self._records.move_to_end(digest)
        was_quarantined = record.is_quarantined
        record.links[link] = tried or record.links.get(link, False)
        if record.is_quarantined and not was_quarantined:
            shown = digest.hex()[:_SHOWN]
            _log.error("content %s is quarantined: %d replicas died with it in flight", shown, record.num_deaths)
        self._make_room()

    def answered(self, content: Content) -> None:
        """Whole: whatever its replicas died of, it was not this."""
        if self._records:
            self._records.pop(content(), None)

    def _find(self, content: Content) -> _Record | None:
        self._forget()
        return self._records.get(content()) if self._records else None

    def _forget(self) -> None:
        oldest = self._clock.now() - self._seconds()
        while self._records and next(iter(self._records.values())).died <= oldest:
            self._records.popitem(last=False)

    def _make_room(self) -> None:
        if len(self._records) <= self._most:
            return
        least = next((key for key, record in self._records.items() if not record.is_quarantined), None)
        self._records.pop(next(iter(self._records)) if least is None else least)


async def _takes_turn(link: Link) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await link.turn.acquire()
    return False
