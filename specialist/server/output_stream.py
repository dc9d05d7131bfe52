"""What waits to be sent to one caller, and when it is sent."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from typing import Any

from specialist.scheduling.step import Emitted
from specialist.server.served_request import LOGPROB_BYTES, NOTHING, TOKEN_BYTES, AnswerChunk, RequestUpdate
from specialist.text.tool_calls import merge_call_parts


class OutputStream:
    """Updates that wait to be sent to one caller. Adjacent chunks are merged. If the caller reads too slowly, its
    request is cancelled, so that memory is bounded. Used only on the event loop, except `is_due`."""

    def __init__(
        self,
        max_bytes: int,
        on_overflow: Callable[[], None],
        gap: float = 0.0,
        pull: Callable[[], object] | None = None,
        num_running: Callable[[], int] = lambda: 1,
    ) -> None:
        """`on_overflow` is called once, when more than `max_bytes` wait. Chunks are sent at least `gap` seconds apart,
        unless an update that is not a chunk arrives or more than half of `max_bytes` wait; `widen_gap` says how much
        more with many running requests. `pull` puts the updates that wait elsewhere. It is called after each gap."""
        self._max_bytes = max_bytes
        self._on_overflow = on_overflow
        self._gap = gap
        self._pull = pull
        self._num_running = num_running
        self._loop = asyncio.get_running_loop()
        self._next_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[RequestUpdate] = []
        self._num_bytes = 0
        self._ready = asyncio.Event()
        self.overflowed = False
        self.is_due = True
        """Whether a chunk would be sent at once: the gap has passed and nothing came. Any thread may read it."""

    def put(self, update: RequestUpdate) -> None:
        if self.overflowed or update == NOTHING:
            return
        self._waiting.append(update)
        if isinstance(update, AnswerChunk | Emitted):
            self._num_bytes += num_bytes(update)
            self._schedule()
        else:
            self._ready.set()
        if self._num_bytes > self._max_bytes:
            self.overflowed = True
            self._waiting.clear()
            self._ready.set()
            self._on_overflow()

    def _schedule(self) -> None:
        if self._loop.time() >= self._next_at or self._num_bytes > self._max_bytes // 2:
            self._ready.set()
            if self._gap and self._pull is not None:
                self.is_due = False  # until this is taken and the gap after that has passed
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next_at, self._ready.set)

    async def take(self) -> list[RequestUpdate]:
        """Wait until updates may be sent, and return all that have arrived; none after an overflow."""
        await self._ready.wait()
        self._ready.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gap and self._num_bytes:
            self._next_at = self._loop.time() + widen_gap(self._gap, self._num_running())
            if self._pull is not None:
                self.is_due = False
                self._timer = self._loop.call_at(self._next_at, self._become_due)
        taken, self._waiting, self._num_bytes = self._waiting, [], 0
        return merge_chunks(taken)

    def _become_due(self) -> None:
        self._timer = None
        self.is_due = True  # before the pull: the engine's thread puts a report first and reads this then
        if self._pull is not None:
            self._pull()
        if self._waiting:
            self._ready.set()


_UNCROWDED = 16  # running requests
_WIDEST = 4.0


def widen_gap(gap: float, num_running: int) -> float:
    """Return the seconds between two chunks of an answer while so many requests run. Beyond 16 requests, the gap grows
    with their number, so that they send no more messages in all than 16 do; it is never more than 4 times as wide."""
    return gap * min(max(1.0, num_running / _UNCROWDED), _WIDEST)


def num_bytes(update: AnswerChunk | Emitted) -> int:
    if isinstance(update, AnswerChunk):
        return update.num_bytes
    logprobs = sum([1 + len(each.top) for each in update.logprobs]) if update.logprobs else 0
    return TOKEN_BYTES * len(update.tokens) + LOGPROB_BYTES * logprobs


def merge_chunks(updates: list[RequestUpdate]) -> list[RequestUpdate]:
    if len(updates) < 2:
        return updates
    if all(type(update) is Emitted for update in updates):
        return [_merge_tokens(updates)]
    merged: list[RequestUpdate] = []
    for kind, group in groupby(updates, type):
        neighbours: list[Any] = list(group)
        if len(neighbours) == 1 or kind not in (AnswerChunk, Emitted):
            merged += neighbours
            continue
        if kind is Emitted:
            merged.append(_merge_tokens(neighbours))
            continue
        tokens = tuple([token for each in neighbours for token in each.tokens])
        logprobs = tuple([logprob for each in neighbours for logprob in each.logprobs])
        text = "".join([chunk.text for chunk in neighbours])
        calls = merge_call_parts(part for chunk in neighbours for part in chunk.calls)
        embedding = next((chunk.embedding for chunk in neighbours if chunk.embedding), ())
        merged.append(AnswerChunk(text, tokens, logprobs, calls, embedding))
    return merged


def _merge_tokens(neighbours: Sequence[Any]) -> Emitted:
    tokens = tuple([token for each in neighbours for token in each.tokens])
    logprobs = tuple([logprob for each in neighbours for logprob in each.logprobs])
    return Emitted(neighbours[0].request_id, tokens, logprobs)
