"""Fenced code in an answer, as models write it: fences left open, nested, indented or quoted."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<before>[ \t>]*)(?P<mark>`{3,}|~{3,})(?P<info>[^`\n]*)")
_LANGUAGE = re.compile(r"[{.\s]*([\w+#-]*)")
_WRAPS = frozenset({"markdown", "md"})
"""A fence around a whole answer, fences and all."""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    """In lower case; empty where the fence has none."""
    code: str
    heading: str = ""
    """The line of prose before it."""


@dataclass(slots=True)
class _Open:
    mark: str
    indent: int
    language: str
    heading: str
    lines: list[str]

    def block(self) -> Block:
        return Block(self.language, "\n".join(self.lines), self.heading)

    def closes_with(self, mark: str, info: str) -> bool:
        return not info and mark[0] == self.mark[0] and len(mark) >= len(self.mark)

    def is_cut_by(self, mark: str, info: str) -> bool:
        """A second opening where the first was never closed: code has no such line."""
        return bool(info) and mark[0] == self.mark[0] and len(mark) >= len(self.mark) and self.language not in _WRAPS


def blocks_in(text: str) -> list[Block]:
    """In order; those of a fenced Markdown document are its own."""
    found: list[Block] = []
    for block in _outer_blocks(text):
        inner = list(_outer_blocks(block.code)) if block.language in _WRAPS else []
        found += inner or [block]
    return found


def _outer_blocks(text: str) -> Iterator[Block]:
    block: _Open | None = None
    prose = ""
    depth = 0
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.fullmatch(line.rstrip())
        if fence is None:
            if block is not None:
                block.lines.append(_without(line, block.indent))
            elif line.strip():
                prose = line.strip()
            continue
        mark, info = fence["mark"], fence["info"].strip()
        if block is None:
            block, depth = _opened(fence, prose), 0
        elif block.language in _WRAPS and info:
            depth += 1
            block.lines.append(line)
        elif block.closes_with(mark, info) and depth:
            depth -= 1
            block.lines.append(line)
        elif block.closes_with(mark, info):
            yield block.block()
            block, prose = None, ""
        elif block.is_cut_by(mark, info):
            yield block.block()
            block = _opened(fence, "")
        else:
            block.lines.append(_without(line, block.indent))
    if block is not None:
        yield block.block()


def _opened(fence: "re.Match[str]", prose: str) -> _Open:
    language = _LANGUAGE.match(fence["info"])
    return _Open(fence["mark"], len(fence["before"]), language[1].lower() if language else "", prose, [])


def _without(line: str, indent: int) -> str:
    """As far as the fence itself stands indented or quoted, its lines do."""
    return line[indent:] if not line[:indent].strip(" \t>") else line
