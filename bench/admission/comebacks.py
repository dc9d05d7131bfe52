"""Whether it was told rightly when to come back."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from heapq import heappop, heappush
from sys import getrecursionlimit, setrecursionlimit
from typing import Protocol

from bench.admission.door import Refused
from bench.admission.offer import Offer
from bench.admission.play import Play
from bench.admission.run import Comeback

HORIZON = 30.0
"""Seconds: nobody is told more, and so nobody is followed for longer."""
GRAIN = 0.1
"""Seconds: a step with a chunk of prompt takes as long, and whatever is shorter counts as this."""
_DEEP = 100_000
"""A pool's blocks hang on each other in a ring, and a copy follows it."""


class Listens(Protocol):
    def would_admit(self, offer: Offer) -> bool:
        """Whether this offer, coming now, would be let in."""

    def settle_in(self) -> None:
        """It is a copy and has to find its things."""


class Comebacks:
    """Some of the refused are followed, every `each`-th of a class.

    The wait that would have been is found in a copy of the world at that moment, in which everything goes on but for
    those of the same or a lower priority who come later, since they would stand in line behind it. There the
    request is asked for again and again, with as much patience as it had, until it would be let in.
    """

    def __init__(self, play: Play, door: Listens, *, until: float, each: int) -> None:
        """Refusals after `until` are not followed: the load would end before their wait does."""
        self._play = play
        self._door = door
        self._until = until
        self._each = each
        self._seen: dict[int, int] = {}
        self._fresh: list[tuple[Offer, Refused]] = []
        self._returning: list[tuple[float, int, Comeback, Offer]] = []
        self.found: list[Comeback] = []
        play.on_refusal, play.on_step = self._refused, self._stepped

    def _refused(self, offer: Offer, refused: Refused) -> None:
        number = self._seen.get(offer.priority, 0)
        self._seen[offer.priority] = number + 1
        if number % self._each == 0 and offer.at <= self._until:
            self._fresh.append((offer, refused))

    def _stepped(self) -> None:
        """Between two steps, where the world can be copied."""
        fresh, self._fresh = self._fresh, []
        for offer, refused in fresh:
            self._follow(offer, refused.retry_after)
        now = self._play.clock.now()
        while self._returning and self._returning[0][0] <= now:
            _, _, comeback, offer = heappop(self._returning)
            self.found.append(comeback._replace(welcome=self._copy()[1].would_admit(replace(offer, at=now))))

    def _follow(self, offer: Offer, told: float | None) -> None:
        comeback = Comeback(offer.priority, told, self._wait(offer), welcome=False)
        if told is None:
            self.found.append(comeback)
        else:
            heappush(self._returning, (offer.at + told, offer.number, comeback, offer))

    def _wait(self, offer: Offer) -> float:
        play, door = self._copy()
        play.clock.stay_away(lambda other: other.priority <= offer.priority)
        while (waited := play.clock.now() - offer.at) < HORIZON:
            if door.would_admit(replace(offer, at=play.clock.now())):
                return waited
            play.advance(GRAIN)
        return HORIZON

    def _copy(self) -> tuple[Play, Listens]:
        """What was so far stays with the original."""
        forget = {id(self): self, id(self._play.outcomes): []}
        with _deep():
            play, door = deepcopy((self._play, self._door), forget)
        door.settle_in()
        return play, door


def ratio(comeback: Comeback) -> float | None:
    """Told to true; None where nothing was told."""
    if comeback.told is None:
        return None
    return max(comeback.told, GRAIN) / max(comeback.wait, GRAIN)


@contextmanager
def _deep() -> Iterator[None]:
    usual = getrecursionlimit()
    setrecursionlimit(max(usual, _DEEP))
    try:
        yield
    finally:
        setrecursionlimit(usual)
