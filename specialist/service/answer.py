"""The text of one answer, as its tokens come."""

from collections.abc import Sequence
from typing import NamedTuple

from specialist.sampling import TokenLogprobs
from specialist.service.words import Detokenizer
from specialist.text.stops import StopStrings
from specialist.tools.reader import CallReader
from specialist.tools.said import Said, joined
from specialist.tools.tool import CallPart


class Piece(NamedTuple):
    """What is new since the last one."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    calls: tuple[CallPart, ...] = ()


class Answer:
    """Ends before the first stop string; a token that only completes one still counts as generated."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        reader: CallReader | None = None,
    ) -> None:
        """`reader` tells calls from text; without one everything is text."""
        self._reader = reader
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._stopper = StopStrings(stops)
        self._min_tokens = min_tokens
        self._unsent = ""
        self.num_tokens = 0
        self.stop_string: str | None = None

    @property
    def reads_calls(self) -> bool:
        return self._reader is not None

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Piece:
        """Tokens behind a stop string are not taken."""
        text, num_taken = "", 0
        for token in tokens:
            if self.stop_string is not None:
                break
            num_taken += 1
            self.num_tokens += 1
            text += self._safe(self._detokenizer.push((token,)))
        said = Said(text) if self._reader is None else self._reader.push(text)
        return Piece(said.text, tuple(tokens[:num_taken]), tuple(logprobs[:num_taken]), said.calls)

    def spell(self, token: int) -> bytes:
        """What it writes by itself; nothing for a control token."""
        return self._detokenizer.spell(token)

    def finish(self) -> Piece:
        """What was held back."""
        text = self._rest()
        if self._reader is None:
            return Piece(text)
        read, rest = self._reader.push(text), self._reader.finish()
        return Piece(read.text + rest.text, calls=joined((*read.calls, *rest.calls)))

    def _rest(self) -> str:
        """An answer that met a stop string has nothing left."""
        if self.stop_string is not None:
            return ""
        text = self._safe(self._detokenizer.finish())
        return text if self.stop_string is not None else text + self._stopper.finish()

    def _safe(self, text: str) -> str:
        """The part that cannot belong to a stop string any more."""
        if self.num_tokens <= self._min_tokens:
            return text
        self._unsent += text
        safe, met = self._stopper.push(text)
        self._unsent = self._unsent[len(safe) :]
        if met:
            self.stop_string = max((stop for stop in self._stops if self._unsent.startswith(stop)), key=len)
        return safe
