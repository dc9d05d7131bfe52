"""Fenced code blocks in an answer."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<before>[ \t>]*)(?P<mark>`{3,}|~{3,})(?P<info>[^`\n]*)")
_LANGUAGE = re.compile(r"[{.\s]*([\w+#-]*)")
_MARKDOWN = frozenset({"markdown", "md"})  # languages of a fence that may contain a whole answer, including fences


@dataclass(frozen=True, slots=True)
class CodeBlock:
    language: str  # in lower case; empty if the fence names no language
    code: str
    heading: str = ""


@dataclass(slots=True)
class _OpenFence:
    mark: str
    indent: int
    language: str
    heading: str
    lines: list[str]

    def block(self) -> CodeBlock:
        return CodeBlock(self.language, "\n".join(self.lines), self.heading)

    def matches(self, mark: str) -> bool:
        return mark[0] == self.mark[0] and len(mark) >= len(self.mark)


def extract_blocks(text: str) -> list[CodeBlock]:
    """Return the blocks in order. A fenced Markdown document is replaced by the blocks inside it."""
    found: list[CodeBlock] = []
    for block in _outer_blocks(text):
        inner = list(_outer_blocks(block.code)) if block.language in _MARKDOWN else []
        found += inner or [block]
    return found


def _outer_blocks(text: str) -> Iterator[CodeBlock]:
    block: _OpenFence | None = None
    prose = ""
    depth = 0
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.fullmatch(line.rstrip())
        if fence is None:
            if block is not None:
                block.lines.append(_unindented(line, block.indent))
            elif line.strip():
                prose = line.strip()
            continue
        mark, info = fence["mark"], fence["info"].strip()
        if block is None:
            block, depth = _open_fence(fence, prose), 0
        elif block.language in _MARKDOWN and info:
            depth += 1
            block.lines.append(line)
        elif block.matches(mark) and not info and depth:
            depth -= 1
            block.lines.append(line)
        elif block.matches(mark):
            yield block.block()
            block = _open_fence(fence, "") if info else None  # an opening fence inside code starts another block
            prose = ""
        else:
            block.lines.append(_unindented(line, block.indent))
    if block is not None:
        yield block.block()


def _open_fence(fence: "re.Match[str]", prose: str) -> _OpenFence:
    language = _LANGUAGE.match(fence["info"])
    return _OpenFence(fence["mark"], len(fence["before"]), language[1].lower() if language else "", prose, [])


def _unindented(line: str, indent: int) -> str:
    """Return the line without the fence's indentation or quote markers."""
    return line[indent:] if not line[:indent].strip(" \t>") else line
