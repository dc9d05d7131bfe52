"""Text and calls out of what a model writes, as it comes and however it is cut into pieces.

What is no call comes out as text, to the letter. Blanks around a call belong to neither.
"""

from collections.abc import Callable, Collection

from specialist.tools.block import BLANK, Block, HeldBlock, StreamedBlock
from specialist.tools.dialect import Dialect
from specialist.tools.said import Said, Saying


class CallReader:
    """For one answer. Linear in the text, whatever the text."""

    def __init__(
        self, dialect: Dialect, names: Collection[str], new_id: Callable[[], str], *, guided: bool = False
    ) -> None:
        """`guided`: only calls as the dialect has them can be written, so that their arguments need not wait for their
        end. Else a call is told when it is whole and right."""
        self._dialect = dialect
        self._names = frozenset(names)
        self._new_id = new_id
        self._guided = guided
        self._blanks: list[str] = []
        """What may yet stand before a call."""
        self._held = ""
        """And behind it, what may be the beginning of one."""
        self._block: Block | None = None
        self._num_calls = 0
        self._is_over = False
        """Of a dialect without a marker: no call can begin any more."""
        self._trims = False
        """Behind a call, before anything else."""

    def push(self, text: str) -> Said:
        saying = Saying()
        while text:
            text = self._inside(text, saying) if self._block is not None else self._outside(text, saying)
        return saying.done()

    def finish(self) -> Said:
        """What was held back, once no more text comes."""
        saying = Saying()
        if self._block is not None:
            self._block.cut(saying)
            self._block = None
        saying.text(self._taken_blanks() + self._held)
        self._held = ""
        return saying.done()

    def _outside(self, text: str, saying: Saying) -> str:
        """What is left to be read."""
        if self._trims:
            text = text.lstrip(BLANK)
            self._trims = not text
        text, self._held = self._held + text, ""
        if not self._dialect.begin:
            return self._at_start(text, saying)
        before, begin, behind = text.partition(self._dialect.begin)
        if not begin:
            kept = _undecided(text, self._dialect.begin)
            before, self._held = text[:kept], text[kept:]
        said = before.rstrip(BLANK)
        if said:
            saying.text(self._taken_blanks() + said)
        self._blanks.append(before[len(said) :])
        if begin:
            self._block = self._new_block(self._taken_blanks() + begin)
        return behind

    def _at_start(self, text: str, saying: Saying) -> str:
        """Without a marker, an answer is a call from its first bracket on, or it is none."""
        begun = text.lstrip(BLANK)
        if self._is_over:
            saying.text(text)
            return ""
        if not begun:
            self._blanks.append(text)
            return ""
        self._is_over = True
        if begun[0] != "{":
            saying.text(self._taken_blanks() + text)
            return ""
        self._block = self._new_block(self._taken_blanks() + text[: -len(begun)])
        return begun

    def _taken_blanks(self) -> str:
        blanks = "".join(self._blanks)
        self._blanks.clear()
        return blanks

    def _new_block(self, opening: str) -> Block:
        kind = StreamedBlock if self._guided else HeldBlock
        return kind(self._dialect, self._names, self._new_id, self._num_calls, opening)

    def _inside(self, text: str, saying: Saying) -> str:
        """What is left to be read."""
        block = self._block
        if block is None:
            raise RuntimeError("read as a call where none has begun")
        for position, character in enumerate(text):
            if block.step(character, saying):
                self._block = None
                self._trims = block.num_calls > self._num_calls
                self._num_calls = block.num_calls
                return block.unread + text[position + 1 :]
        return ""


def _undecided(text: str, marker: str) -> int:
    """From where on it may be the beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return len(text) - next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)
