"""Everybody who was let in and has not ended: in line, running, or set aside for somebody more important."""

from bisect import bisect_left, insort
from collections.abc import Collection

from admission.forecast.booking import Booking
from admission.forecast.entry import Entry, rank_of


class Books:
    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._line: list[Entry] = []
        self._running: dict[str, Entry] = {}
        self._aside: dict[str, Entry] = {}
        self._num_entered = 0
        self.num_shadows = 0

    def __len__(self) -> int:
        """Without those who were set aside."""
        return len(self._entries)

    @property
    def num_live(self) -> int:
        return len(self._entries) + len(self._aside)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key) or self._aside.get(key)

    @property
    def entries(self) -> Collection[Entry]:
        """In line or running."""
        return self._entries.values()

    @property
    def aside(self) -> list[Entry]:
        """In order of rank."""
        return sorted(self._aside.values(), key=rank_of)

    @property
    def line(self) -> list[Entry]:
        """In order of rank."""
        return self._line

    @property
    def running(self) -> Collection[Entry]:
        return self._running.values()

    def new_entry(self, booking: Booking) -> Entry:
        """Not in the books yet."""
        return Entry(booking, self._num_entered + 1)

    def add(self, entry: Entry) -> None:
        if self.get(entry.booking.key) is not None:
            raise ValueError(f"{entry.booking.key!r} is in the books already")
        self._num_entered += 1
        self._entries[entry.booking.key] = entry
        self.num_shadows += entry.booking.shadow
        insort(self._line, entry, key=rank_of)

    def without_shadows(self) -> "Books":
        """Everybody whom somebody waits for; the same entries."""
        if not self.num_shadows:
            return self
        callers = Books()
        callers._num_entered = self._num_entered
        callers._entries = {key: entry for key, entry in self._entries.items() if not entry.booking.shadow}
        callers._line = [entry for entry in self._line if not entry.booking.shadow]
        callers._running = {key: entry for key, entry in self._running.items() if not entry.booking.shadow}
        return callers

    def set_aside(self, key: str) -> None:
        """What it was told when it was let in holds no more."""
        entry = self._entries.pop(key)
        entry.promise = None
        self._aside[key] = entry
        if self._running.pop(key, None) is None:
            self._leave_line(entry)

    def call_back(self, key: str) -> None:
        """Where it was: the news that it left its seat may still be under way."""
        entry = self._entries[key] = self._aside.pop(key)
        if entry.running:
            self._running[key] = entry
        else:
            insort(self._line, entry, key=rank_of)

    def start(self, entry: Entry) -> None:
        if entry.booking.key in self._aside:
            return
        self._leave_line(entry)
        self._running[entry.booking.key] = entry

    def give_way(self, entry: Entry) -> None:
        if self._running.pop(entry.booking.key, None) is not None:
            insort(self._line, entry, key=rank_of)

    def pass_over(self, served: Collection[str]) -> None:
        """A chunk of prompts was computed; those of the others were not. Where a stack goes by rank alone, because its
        first is pressed for time, nobody of it is passed over."""
        hurried = {head.stack for head in self._heads(served) if head.pressed}
        for entry in self._running.values():
            is_served = entry.booking.key in served or entry.stack in hurried
            entry.passed_over = 0 if is_served else entry.passed_over - 1

    def _heads(self, served: Collection[str]) -> list[Entry]:
        """The first in rank of each stack that was served."""
        stacks = {entry.stack for key in served if (entry := self._running.get(key)) is not None}
        prompts = [entry for entry in self._running.values() if entry.prompt_left or entry.booking.key in served]
        return [min((entry for entry in prompts if entry.stack == stack), key=rank_of) for stack in stacks]

    def remove(self, key: str) -> Entry | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return self._aside.pop(key, None)
        self.num_shadows -= entry.booking.shadow
        if self._running.pop(key, None) is None:
            self._leave_line(entry)
        return entry

    def _leave_line(self, entry: Entry) -> None:
        at = bisect_left(self._line, entry.rank, key=rank_of)
        if at < len(self._line) and self._line[at] is entry:
            del self._line[at]
