"""One stretch of calls, from its marker to its end."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Literal

from specialist.tools.brackets import Brackets
from specialist.tools.dialect import Dialect
from specialist.tools.parsed import Written, parsed
from specialist.tools.said import Saying
from specialist.tools.tool import CallPart

BLANK = " \t\r\n"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


class Block(ABC):
    """What stands around the JSON of calls."""

    def __init__(
        self, dialect: Dialect, names: Collection[str], new_id: Callable[[], str], num_calls: int, opening: str
    ) -> None:
        """`opening` is what has been read of it."""
        self.num_calls = num_calls
        """Of the answer, this block's included."""
        self.unread = ""
        """At its end: what turned out to stand behind it."""
        self._dialect = dialect
        self._names = names
        self._new_id = new_id
        self._raw = [opening]
        """What comes out as text if this is no call."""
        self._brackets = Brackets()
        self._at: Literal["opening", "json", "closing"] = "opening"
        self._tail: list[str] = []
        self._num_matched = 0

    def step(self, character: str, saying: Saying) -> bool:
        """Whether it has ended, with this character at the latest."""
        if self._at == "opening" and not self._opens(character):
            if character in BLANK:
                self._raw.append(character)
                return False
            return self._fail(character, saying)
        if self._at == "closing":
            return self._close(character, saying)
        self._read(character, saying)
        if self._brackets.depth:
            return False
        if not self._is_right():
            return self._fail("", saying)
        self._at = "closing"
        return not self._dialect.end and self._end(saying)

    @abstractmethod
    def cut(self, saying: Saying) -> None:
        """No more comes."""

    def _opens(self, character: str) -> bool:
        if character != ("[" if self._dialect.is_list else "{"):
            return False
        self._at = "json"
        return True

    def _close(self, character: str, saying: Saying) -> bool:
        self._tail.append(character)
        if self._num_matched == 0 and character in BLANK:
            return False
        if character != self._dialect.end[self._num_matched]:
            return self._fail("".join(self._tail), saying)
        self._num_matched += 1
        return self._num_matched == len(self._dialect.end) and self._end(saying)

    def _fail(self, unread: str, saying: Saying) -> bool:
        saying.text("".join(self._raw))
        self.unread = unread
        return True

    @abstractmethod
    def _read(self, character: str, saying: Saying) -> None:
        """The next of the JSON."""

    @abstractmethod
    def _is_right(self) -> bool:
        """The JSON is whole: whether it is made of calls."""

    @abstractmethod
    def _end(self, saying: Saying) -> bool:
        """The block is whole. True."""

    def _tell(self, saying: Saying, name: str, arguments: str) -> None:
        saying.part(CallPart(self.num_calls, self._new_id(), name, arguments))
        self.num_calls += 1


class HeldBlock(Block):
    """Told at its end, where it is right."""

    _calls: list[Written] | None = None

    def _read(self, character: str, saying: Saying) -> None:
        self._raw.append(character)
        self._brackets.step(character)

    def _is_right(self) -> bool:
        self._calls = parsed("".join(self._raw[1:]).strip(BLANK), self._dialect, self._names)
        return self._calls is not None

    def _end(self, saying: Saying) -> bool:
        for call in self._calls or ():
            self._tell(saying, call.name, call.arguments)
        return True

    def cut(self, saying: Saying) -> None:
        """Calls that are whole count, whether their end is marked or not."""
        if self._calls is not None:
            self._end(saying)
        else:
            self._fail("", saying)


class StreamedBlock(Block):
    """Told as it is written: a call's name as soon as it is known, then its arguments."""

    _in_arguments = False

    def _read(self, character: str, saying: Saying) -> None:
        before = self._brackets.depth
        self._brackets.step(character)
        depth, call_depth = self._brackets.depth, 2 if self._dialect.is_list else 1
        if self._in_arguments:
            saying.part(CallPart(self.num_calls - 1, "", "", character))
            self._in_arguments = depth > call_depth
            return
        if depth == call_depth + 1 > before and character == "{" and self._begins(saying):
            return
        if self._raw or (character == "{" and depth == call_depth > before):
            self._raw.append(character)

    def _begins(self, saying: Saying) -> bool:
        found = _NAME.search("".join(self._raw))
        if found is None or found[1] not in self._names:
            return False
        self._tell(saying, found[1], "{")
        self._in_arguments = True
        self._raw = []
        return True

    def _is_right(self) -> bool:
        return not self._raw

    def _end(self, saying: Saying) -> bool:
        return True

    def cut(self, saying: Saying) -> None:
        """A call whose name is known stays one; what closes it is no text."""
        saying.text("".join(self._raw))
