"""One request at one replica."""

from collections.abc import Callable
from typing import Any, Protocol

from router.replicas.failure import Failure
from router.replicas.replica import Replica


def _nobody_cares() -> None:
    """A shadow's way is no conversation's."""


class Trial(Protocol):
    """Of a request that may have killed a replica before."""

    def over(self) -> None: ...

    def lost(self) -> None: ...


class Attempt:
    """Counts its messages and no more: whoever sweeps looks twice to see what moves. Use it as a context, which keeps
    the replica's own count."""

    __slots__ = (
        "_allowed",
        "_breaker",
        "_entered",
        "breaker_state",
        "call",
        "let_in",
        "link",
        "lost",
        "moved_at",
        "num_messages",
        "num_seen",
        "replica",
        "started",
        "trial",
        "was_open",
        "writing",
    )

    def __init__(
        self, replica: Replica, let_in: Callable[[], None] = _nobody_cares, trial: Trial | None = None
    ) -> None:
        """`let_in` is called when the replica has accepted it."""
        self.replica = replica
        self.link = replica.link
        self.trial = trial
        self.let_in = let_in
        self._breaker = replica.breaker
        self._allowed = False
        self.breaker_state = replica.breaker.state
        """When it was chosen."""
        self.was_open = replica.linked and not replica.draining
        self.call: Any = None
        self.started = False
        """A token has come: from here on there is no other replica for this request."""
        self.num_messages = 0
        self.writing = False
        """A message waits for the caller to take it."""
        self.lost: str | None = None
        """Why it was given up from outside."""
        self.num_seen = -1
        self.moved_at = 0.0
        """Both belong to the sweep."""

    def __enter__(self) -> "Attempt":
        self._allowed = self._breaker.allow()
        self._entered = self.replica.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.replica.leave(self._entered)
        if self.call is not None:
            self.call.cancel()

    def start(self) -> None:
        """The first token is there: a probe has shown what it was to show."""
        self.started = True
        if self.trial is not None:
            self.trial.over()
        if self._breaker.state == "half_open":
            self._breaker.succeeded()

    def lose(self, why: str) -> None:
        """Give it up from outside."""
        if self.lost is None and self.call is not None:
            self.lost = why
            self.call.cancel()

    def judge(self, failure: Failure | None) -> None:
        """What came of it, for the replica's health."""
        if failure is None or (failure.kind == "final" and self.started):
            self._breaker.succeeded()
        elif failure.kind in ("dropped", "lost", "failed"):
            self._breaker.failed()
        else:
            self.gave_up()

    def gave_up(self) -> None:
        """Nothing came of it that would say anything."""
        if self._allowed:
            self._breaker.gave_up()
