"""Separates tool calls from text in a model's output as it arrives, regardless of how it is split."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from specialist.text import tool_calls
from specialist.text.prompt import Structure, ToolCallFragment, ToolOffer
from specialist.text.tool_calls import BLANK, JsonBrackets, ParsedText, ParsedTextBuilder, ToolDialect

_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class ToolCalling:
    offer: ToolOffer
    dialect: ToolDialect
    control: Mapping[str, int]  # the dialect's markers that are control tokens, and their ids
    answer: Structure | None = None  # the form that an answer without calls must have

    @property
    def is_guided(self) -> bool:
        """Whether a grammar guides the answer: a call is required, only one is allowed, a tool is strict, or an answer
        without calls has a form."""
        offer = self.offer
        is_limited = offer.must_call or offer.one_at_most or any(tool.strict for tool in offer.tools)
        return is_limited or self.answer is not None

    def structure(self, depth: int) -> Structure | None:
        """Return the structure of a guided answer, else None. Raises InvalidValue for an invalid or too deep schema."""
        if not self.is_guided:
            return None
        answer = None if self.offer.must_call else self.answer
        has_text = not self.offer.must_call and answer is None
        is_json = answer is not None and answer.kind.startswith("json")
        rules = tool_calls.tool_call_rules(
            self.offer, self.dialect, self.control, depth, has_text=has_text, beside_json=is_json
        )
        return Structure("calls", rules, answer=answer)

    def reader(self, new_id: Callable[[], str]) -> "CallReader":
        names = [tool.name for tool in self.offer.callable]
        # The text of a structured answer may look like the beginning of a call.
        may_mislead = self.answer is not None and not self.offer.must_call
        return CallReader(self.dialect, names, new_id, guided=self.is_guided and not may_mislead)

    def visible_markers(self) -> dict[int, str]:
        return {token_id: marker for marker, token_id in self.control.items()}


class CallReader:
    """Reads one answer, in time linear in its length. Output that is not a call is returned unchanged, as text;
    whitespace around a call is dropped."""

    def __init__(
        self, dialect: ToolDialect, names: Collection[str], new_id: Callable[[], str], *, guided: bool = False
    ) -> None:
        """With `guided`, a grammar guarantees well-formed calls, so that arguments are passed on as they arrive.
        Otherwise a call is passed on once it is complete and valid."""
        self._dialect = dialect
        self._names = frozenset(names)
        self._new_id = new_id
        self._guided = guided
        self._blanks: list[str] = []  # whitespace that may precede a call
        self._held = ""  # text after the blanks that may be the beginning of a marker
        self._block: CallBlock | None = None
        self._num_calls = 0
        self._is_text_only = False  # whether no call can begin any more, in a dialect without a marker
        self._trims_blanks = False  # whether the text directly follows a call

    def push(self, text: str) -> ParsedText:
        parsed = ParsedTextBuilder()
        while text:
            text = self._read_text(text, parsed) if self._block is None else self._read_block(self._block, text, parsed)
        return parsed.build()

    def finish(self) -> ParsedText:
        parsed = ParsedTextBuilder()
        if self._block is not None:
            self._block.cut(parsed)
            self._block = None
        parsed.texts.append(self._take_blanks() + self._held)
        self._held = ""
        return parsed.build()

    def _read_text(self, text: str, parsed: ParsedTextBuilder) -> str:
        if self._trims_blanks:
            text = text.lstrip(BLANK)
            self._trims_blanks = not text
        text, self._held = self._held + text, ""
        if not self._dialect.begin:
            return self._read_start(text, parsed)
        before, begin, behind = text.partition(self._dialect.begin)
        if not begin:
            start = _marker_start(text, self._dialect.begin)
            before, self._held = text[:start], text[start:]
        content = before.rstrip(BLANK)
        if content:
            parsed.texts.append(self._take_blanks() + content)
        self._blanks.append(before[len(content) :])
        if begin:
            self._block = self._new_block(self._take_blanks() + begin)
        return behind

    def _read_start(self, text: str, parsed: ParsedTextBuilder) -> str:
        """Read the start of an answer in a dialect without a marker: `{` begins a call, anything else is text."""
        content = text.lstrip(BLANK)
        if self._is_text_only:
            parsed.texts.append(text)
            return ""
        if not content:
            self._blanks.append(text)
            return ""
        self._is_text_only = True
        if content[0] != "{":
            parsed.texts.append(self._take_blanks() + text)
            return ""
        self._block = self._new_block(self._take_blanks() + text[: -len(content)])
        return content

    def _take_blanks(self) -> str:
        blanks = "".join(self._blanks)
        self._blanks.clear()
        return blanks

    def _new_block(self, opening: str) -> "CallBlock":
        kind = StreamedBlock if self._guided else BufferedBlock
        return kind(self._dialect, self._names, self._new_id, self._num_calls, opening)

    def _read_block(self, block: "CallBlock", text: str, parsed: ParsedTextBuilder) -> str:
        for position, character in enumerate(text):
            if block.step(character, parsed):
                self._block = None
                self._trims_blanks = block.num_calls > self._num_calls
                self._num_calls = block.num_calls
                return block.unread + text[position + 1 :]
        return ""


def _marker_start(text: str, marker: str) -> int:
    """Return the start of the longest suffix that may be the beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return len(text) - next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)


class CallBlock(ABC):
    def __init__(
        self, dialect: ToolDialect, names: Collection[str], new_id: Callable[[], str], num_calls: int, opening: str
    ) -> None:
        """`opening` is the part of the block that was already read."""
        self.num_calls = num_calls  # calls of the answer, including those of this block
        self.unread = ""  # after the end: text that does not belong to the block
        self._dialect = dialect
        self._names = names
        self._new_id = new_id
        self._raw = [opening]  # becomes text if this is not a call
        self._brackets = JsonBrackets()
        self._state: Literal["opening", "json", "closing"] = "opening"
        self._tail: list[str] = []
        self._num_matched = 0

    def step(self, character: str, parsed: ParsedTextBuilder) -> bool:
        """Read a character. Return whether the block has ended, at this character or before it."""
        if self._state == "opening":
            if character != ("[" if self._dialect.is_list else "{"):
                if character in BLANK:
                    self._raw.append(character)
                    return False
                return self._fail(character, parsed)
            self._state = "json"
        if self._state == "closing":
            return self._close(character, parsed)
        self._read(character, parsed)
        if self._brackets.depth:
            return False
        if not self._is_valid():
            return self._fail("", parsed)
        self._state = "closing"
        return not self._dialect.end and self._end(parsed)

    def _close(self, character: str, parsed: ParsedTextBuilder) -> bool:
        self._tail.append(character)
        if self._num_matched == 0 and character in BLANK:
            return False
        if character != self._dialect.end[self._num_matched]:
            return self._fail("".join(self._tail), parsed)
        self._num_matched += 1
        return self._num_matched == len(self._dialect.end) and self._end(parsed)

    def _fail(self, unread: str, parsed: ParsedTextBuilder) -> bool:
        parsed.texts.append("".join(self._raw))
        self.unread = unread
        return True

    @abstractmethod
    def cut(self, parsed: ParsedTextBuilder) -> None:
        """Handle the end of the answer inside the block."""

    @abstractmethod
    def _read(self, character: str, parsed: ParsedTextBuilder) -> None: ...

    @abstractmethod
    def _is_valid(self) -> bool: ...

    def _end(self, parsed: ParsedTextBuilder) -> bool:
        """Complete the block and return True."""
        return True

    def _begin_call(self, parsed: ParsedTextBuilder, name: str, arguments: str) -> None:
        parsed.calls.append(ToolCallFragment(self.num_calls, self._new_id(), name, arguments))
        self.num_calls += 1


class BufferedBlock(CallBlock):
    """Passes its calls on at the end of the block, and only if they are valid."""

    _calls: list[tuple[str, str]] | None = None  # names and arguments

    def _read(self, character: str, parsed: ParsedTextBuilder) -> None:
        self._raw.append(character)
        self._brackets.step(character)

    def _is_valid(self) -> bool:
        self._calls = tool_calls.parse_calls("".join(self._raw[1:]).strip(BLANK), self._dialect, self._names)
        return self._calls is not None

    def _end(self, parsed: ParsedTextBuilder) -> bool:
        for name, arguments in self._calls or ():
            self._begin_call(parsed, name, arguments)
        return True

    def cut(self, parsed: ParsedTextBuilder) -> None:
        """Pass on the calls if they are complete, even without the end marker; otherwise pass the block on as text."""
        if self._calls is not None:
            self._end(parsed)
        else:
            self._fail("", parsed)


class StreamedBlock(CallBlock):
    """Passes calls on as they are written: the name once the arguments begin, then the arguments as they arrive."""

    _in_arguments = False

    def _read(self, character: str, parsed: ParsedTextBuilder) -> None:
        before = self._brackets.depth
        self._brackets.step(character)
        depth, call_depth = self._brackets.depth, 2 if self._dialect.is_list else 1
        if self._in_arguments:
            parsed.calls.append(ToolCallFragment(self.num_calls - 1, "", "", character))
            self._in_arguments = depth > call_depth
            return
        if depth == call_depth + 1 > before and character == "{" and self._begin_arguments(parsed):
            return
        if self._raw or (character == "{" and depth == call_depth > before):
            self._raw.append(character)

    def _begin_arguments(self, parsed: ParsedTextBuilder) -> bool:
        found = _NAME.search("".join(self._raw))
        if found is None or found[1] not in self._names:
            return False
        self._begin_call(parsed, found[1], "{")
        self._in_arguments = True
        self._raw = []
        return True

    def _is_valid(self) -> bool:
        return not self._raw

    def cut(self, parsed: ParsedTextBuilder) -> None:
        """Pass on a call as text if its arguments have not begun. Everything else was passed on already."""
        parsed.texts.append("".join(self._raw))
