"""Whether the Python in an answer parses."""

import asyncio
import re

from router.verify.child import Child
from router.verify.fences import blocks_in
from router.verify.notebook import is_for_another
from router.verify.verdict import Verdict, too_long
from router.verify.workshop import Workshop

_PYTHON = frozenset({"python", "py", "python3", "py3", "pycon", "ipython"})
_PROMPT = re.compile(r"^(?:>>> ?|\.\.\. ?)")
_SIGNS = re.compile(
    r"^[ \t]*(?:def \w+\(|class \w+[:(]|import \w|from [\w.]+ import |if __name__|print\(|@\w|for \w+ in |return\b)",
    re.MULTILINE,
)
_LIKE_CODE = re.compile(r"[=()#:\[\]]")


class PythonVerifier:
    def __init__(
        self,
        name: str,
        workshop: Workshop,
        *,
        cpu_seconds: float,
        clock_seconds: float,
        answer_bytes: int,
        is_code_required: bool = False,
    ) -> None:
        self.name = name
        self._child = Child(name, "router.verify.parse_python", workshop, cpu_seconds, clock_seconds)
        self._answer_bytes = answer_bytes
        self._is_code_required = is_code_required

    async def verify(self, question: str, answer: str) -> Verdict:
        if why := too_long(answer, self._answer_bytes):
            return Verdict("skipped", why)
        sources = await asyncio.to_thread(python_in, answer)
        if not sources:
            return Verdict("failed" if self._is_code_required else "skipped", "there is no Python in it")
        return await self._child.verdict(sources)

    async def close(self) -> None:
        """Nothing runs between two answers."""


def python_in(text: str) -> list[str]:
    """Fenced Python, each block by itself, or the text itself where it is nothing but code."""
    blocks = blocks_in(text)
    if not blocks:
        return [text] if _SIGNS.search(text) and not any(map(_is_prose, text.split("\n"))) else []
    named = [block.code for block in blocks if block.language in _PYTHON]
    unnamed = [block.code for block in blocks if not block.language and _SIGNS.search(block.code)]
    return [_as_module(code) for code in named or unnamed if code.strip() and not is_for_another(code)]


def _is_prose(line: str) -> bool:
    words = line[:400].split()
    return len(words) > 3 and words[0][0].isupper() and words[-1][-1] in ".!?:" and not _LIKE_CODE.search(line[:-1])


def _as_module(code: str) -> str:
    """From the left margin, and from a session only what was typed."""
    lines = code.split("\n")
    if any(line.startswith(">>>") for line in lines):
        lines = [_PROMPT.sub("", line) for line in lines if _PROMPT.match(line)]
    margins = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    margin = min(margins, default=0)
    return "\n".join(line[margin:] for line in lines) + "\n"
