"""Answers that wait to be judged: a line for every specialist before the verifier that judges it."""

from collections import deque
from itertools import count

from router.after.place import Place
from router.after.work import Work
from router.verify.turns import Turns


class Lines:
    """A verifier has one answer at a time, and so nobody waits for a verifier that is not its own. Where it judges
    several specialists they take turns. Whatever the line, the oldest goes first when there are too many."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[str, dict[str, deque[tuple[int, Work]]]] = {}
        """By verifier and specialist; none of them is empty."""
        self._turns: dict[str, Turns] = {}
        self._busy: set[str] = set()
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def put(self, place: Place, work: Work) -> None:
        lines = self._waiting.setdefault(place.verifier, {})
        if place.specialist not in lines:
            self._turns.setdefault(place.verifier, Turns()).ask(place.specialist)
            lines[place.specialist] = deque()
        lines[place.specialist].append((next(self._numbers), work))
        self._num_waiting += 1

    def take(self) -> tuple[Place, Work] | None:
        """One for a verifier that is free; it has it until it is `done`."""
        verifier = next((each for each in self._waiting if each not in self._busy), None)
        if verifier is None:
            return None
        place = Place(verifier, self._turns[verifier].call(self._waiting[verifier]))
        self._busy.add(verifier)
        return place, self._first(place)

    def done(self, place: Place, seconds: float) -> None:
        """So long it took."""
        self._busy.discard(place.verifier)
        self._turns[place.verifier].charge(place.specialist, seconds)

    def oldest(self) -> Work:
        """It waits no more. There is one."""
        heads = ((line[0][0], Place(by, who)) for by, lines in self._waiting.items() for who, line in lines.items())
        return self._first(min(heads, key=lambda head: head[0])[1])

    def _first(self, place: Place) -> Work:
        lines = self._waiting[place.verifier]
        _, work = lines[place.specialist].popleft()
        if not lines[place.specialist]:
            del lines[place.specialist]
        if not lines:
            del self._waiting[place.verifier]
        self._num_waiting -= 1
        return work
