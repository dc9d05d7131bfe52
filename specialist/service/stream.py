"""What waits to be sent to one caller. Bounded: a caller that does not read loses its request, not our memory."""

import asyncio
from collections.abc import Callable
from math import inf

from specialist.sampling import TokenLogprobs
from specialist.service.answer import Piece
from specialist.service.job import News
from specialist.tools.said import joined
from specialist.tools.tool import CallPart

_TOKEN_BYTES = 8
_LOGPROB_BYTES = 24


class Stream:
    """Belongs to the event loop. Pieces that wait become one; everything else keeps its place, and is sent at once."""

    def __init__(self, max_bytes: int, overflow: Callable[[], None], gap: float = 0.0) -> None:
        """`overflow` is called once, when more than `max_bytes` wait. `gap` is seconds from one piece to the next: what
        comes sooner waits for it, or for the end."""
        self._max_bytes = max_bytes
        self._overflow = overflow
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._next_at = -inf
        """When the next piece may be taken."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[News] = []
        self._num_bytes = 0
        self._ready = asyncio.Event()
        self.overflowed = False

    def put(self, news: News) -> None:
        if self.overflowed or news == Piece(""):
            return
        self._waiting.append(news)
        if isinstance(news, Piece):
            self._num_bytes += _num_bytes(news)
            self._ready_in_time()
        else:
            self._ready.set()
        if self._num_bytes > self._max_bytes:
            self.overflowed = True
            self._waiting.clear()
            self._ready.set()
            self._overflow()

    def _ready_in_time(self) -> None:
        if self._loop.time() >= self._next_at or self._num_bytes > self._max_bytes // 2:
            self._ready.set()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_at, self._ready.set)

    async def take(self) -> list[News]:
        """Everything that waits, at least one; nothing after an overflow."""
        await self._ready.wait()
        self._ready.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gap and self._num_bytes:
            self._next_at = self._loop.time() + self._gap
        taken, self._waiting, self._num_bytes = self._waiting, [], 0
        return _coalesced(taken)


def _coalesced(all_news: list[News]) -> list[News]:
    """Neighbouring pieces as one."""
    result: list[News] = []
    pieces: list[Piece] = []
    for news in all_news:
        if isinstance(news, Piece):
            pieces.append(news)
            continue
        if pieces:
            result.append(_joined(pieces))
            pieces = []
        result.append(news)
    if pieces:
        result.append(_joined(pieces))
    return result


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
        joined(part for piece in pieces for part in piece.calls),
    )


def _num_bytes(piece: Piece) -> int:
    text = len(piece.text.encode()) + sum(map(_call_bytes, piece.calls))
    return text + _TOKEN_BYTES * len(piece.tokens) + sum(map(_logprob_bytes, piece.logprobs))


def _call_bytes(part: CallPart) -> int:
    return len(f"{part.call_id}{part.name}{part.arguments}".encode())


def _logprob_bytes(logprobs: TokenLogprobs) -> int:
    return _LOGPROB_BYTES * (1 + len(logprobs.top))
