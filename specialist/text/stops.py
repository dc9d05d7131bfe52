"""Strings that end an answer, found across the borders of tokens."""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class _Node(NamedTuple):
    """A prefix of a stop string."""

    depth: int
    children: dict[str, int]


class _Automaton:
    """Every prefix of every stop string; after each character it is at the longest one the text ends with."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.nodes = [_Node(0, {})]
        self.shorter = [0]  # the longest proper suffix of a node that is a node too
        self.matched = [0]  # length of the longest stop string a node ends with, 0 for none
        for stop in stops:
            self._add(stop)
        self._link()
        starts = "".join(re.escape(first) for first in self.nodes[0].children)
        self.start = re.compile(f"[{starts}]")

    def _add(self, stop: str) -> None:
        at = 0
        for depth, character in enumerate(stop, 1):
            following = self.nodes[at].children.setdefault(character, len(self.nodes))
            if following == len(self.nodes):
                self.nodes.append(_Node(depth, {}))
                self.shorter.append(0)
                self.matched.append(0)
            at = following
        self.matched[at] = len(stop)

    def _link(self) -> None:
        """Breadth first: a node's shorter suffix is done before the node."""
        line = deque(self.nodes[0].children.values())
        while line:
            parent = line.popleft()
            for character, child in self.nodes[parent].children.items():
                self.shorter[child] = self.step(self.shorter[parent], character)
                self.matched[child] = self.matched[child] or self.matched[self.shorter[child]]
                line.append(child)

    def step(self, at: int, character: str) -> int:
        while character not in self.nodes[at].children:
            if at == 0:
                return 0
            at = self.shorter[at]
        return self.nodes[at].children[character]


class StopStrings:
    """For one answer. What is sent is the text before the first stop string, however the text was cut into pieces.

    The first is the one that begins earliest, so a stop string that has been met waits while an earlier one may
    still be completed. Linear in the text, whatever the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError(f"stop[{list(stops).index('')}] is empty")
        self._automaton = _Automaton(stops) if stops else None
        self._at = 0
        self._held = ""
        self._met: int | None = None  # where in the held text the first stop string begins
        self._done = False

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to send, and whether a stop string has been met; after that nothing more comes."""
        if self._automaton is None:
            return text, False
        if self._done:
            return "", True
        scanned, text = len(self._held), self._held + text
        self._done = self._scan(self._automaton, text, scanned)
        if self._done:
            self._held = ""
            return text[: self._met], True
        live = len(text) - self._automaton.nodes[self._at].depth
        self._held = text[live:]
        if self._met is not None:
            self._met -= live
        return text[:live], False

    def finish(self) -> str:
        """What was held back, once no more text comes."""
        rest, self._held = self._held[: self._met], ""
        return rest

    def _scan(self, automaton: _Automaton, text: str, position: int) -> bool:
        """Whether the first stop string is known: nothing that began before it can still become one."""
        while position < len(text):
            if self._at == 0:
                begin = automaton.start.search(text, position)
                if begin is None:
                    return False
                position = begin.start()
            self._at = automaton.step(self._at, text[position])
            position += 1
            if length := automaton.matched[self._at]:
                begins = position - length
                self._met = begins if self._met is None else min(self._met, begins)
            if self._met is not None and position - automaton.nodes[self._at].depth >= self._met:
                return True
        return False
