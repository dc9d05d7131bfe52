"""Spans on their way out: handed over without waiting, drawn and sent by a thread of its own, and forgotten rather than
piled up."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Protocol, TypeAlias

from octet.telemetry.span import Span

_log = logging.getLogger(__name__)
MOST_WAITING = 2048
"""Requests, or as much of one as is told at once; beyond it new ones are dropped, and counted."""
BATCH = 64
EVERY_SECONDS = 1.0
"""What waits is sent at least so often; a full batch at once."""
_LAST_SECONDS = 1.0
"""For a thread that was told to end."""

Story: TypeAlias = Callable[[], Sequence[Span]]
"""Draws the spans when they are wanted: nobody who serves has to."""


class Post(Protocol):
    """Where spans are sent."""

    def send(self, spans: Sequence[Span]) -> bool:
        """False: they were not taken. May take long."""

    def close(self) -> None:
        """A `send` that is under way ends soon, on whatever thread it is."""


class Outbox:
    def __init__(
        self,
        open_post: Callable[[], Post],
        *,
        most: int = MOST_WAITING,
        batch: int = BATCH,
        every: float = EVERY_SECONDS,
    ) -> None:
        """`open_post` is called on the outbox's own thread."""
        self._open_post = open_post
        self._most = most
        self._batch = batch
        self._every = every
        self._waiting: deque[Story] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._post: Post | None = None
        self._closing = False
        self._is_away = False
        self.sent = 0
        self.dropped = 0
        """For want of room, or because nobody took them."""

    def start(self) -> None:
        """Opens the post, which may mean to load much: before anybody is served."""
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def put(self, story: Story) -> None:
        """Never waits for anybody."""
        with self._changed:
            if self._closing or len(self._waiting) >= self._most:
                self.dropped += 1
                return
            self._waiting.append(story)
            if len(self._waiting) in (1, self._batch):
                self._changed.notify()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def close(self, seconds: float) -> None:
        """What waits is sent, if that takes no longer than `seconds`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive() and self._post is not None:
            self._forget()
            self._post.close()
            self._thread.join(_LAST_SECONDS)
        if self.dropped:
            _log.warning("the traces of %d requests were lost, those of %d were sent", self.dropped, self.sent)

    def _run(self) -> None:
        try:
            post = self._post = self._open_post()
        except Exception:
            _log.error("traces cannot be sent, and none are kept", exc_info=True)
            self._forget()
            return
        while stories := self._next():
            self._send(post, stories)
        post.close()

    def _next(self) -> list[Story]:
        """Nothing at the end of it all."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._waiting)
            self._changed.wait_for(lambda: self._closing or len(self._waiting) >= self._batch, self._every)
            return [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]

    def _send(self, post: Post, stories: Sequence[Story]) -> None:
        try:
            taken = post.send([span for story in stories for span in story()])
        except Exception:
            _log.error("the traces of %d requests could not be sent", len(stories), exc_info=True)
            taken = False
        with self._changed:
            self.sent += len(stories) if taken else 0
            self.dropped += 0 if taken else len(stories)
        self._tell(taken)

    def _tell(self, taken: bool) -> None:
        """Once when it goes wrong, once when it goes on."""
        if taken != self._is_away:
            return
        self._is_away = not taken
        if taken:
            _log.info("traces are taken again; those of %d requests were lost", self.dropped)
        else:
            _log.warning("nobody takes traces: they are dropped until somebody does")

    def _forget(self) -> None:
        with self._changed:
            self._closing = True
            self.dropped += len(self._waiting)
            self._waiting.clear()
