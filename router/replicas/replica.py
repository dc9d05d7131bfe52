"""One replica as the router knows it."""

import logging
from dataclasses import dataclass
from typing import Any

from admission.breaker import Breaker
from octet.clock import Clock
from octet.v1 import specialist_pb2 as wire
from router.replicas.address import Target
from router.replicas.link import Link
from router.replicas.pick import Candidate

_log = logging.getLogger(__name__)
_QUIET_SECONDS = 2.0
"""A replica that hung is asked once before it is asked as often as others. Where nobody wants anything of it for so
long after it is heard from again, its reports will do."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica said of itself."""

    depth: int
    """Without shadows: they give way."""
    shadows: int
    max_running: int
    preempting: bool
    draining: bool
    refusing: bool
    """It has just refused somebody for want of capacity."""
    adapters: frozenset[str]
    revision: str

    @classmethod
    def of(cls, report: wire.LoadReport) -> "Load":
        return cls(
            depth=max(0, report.waiting + report.running - report.shadows),
            shadows=report.shadows,
            max_running=report.max_running,
            preempting=report.preempting,
            draining=report.draining,
            refusing=report.refusing,
            adapters=frozenset(adapter.name for adapter in report.adapters),
            revision=report.revision,
        )


class Replica:
    """Belongs to the event loop. Its watcher tells it what it hears, whoever dispatches enters and leaves."""

    def __init__(
        self, specialist: str, target: Target, channel: Any, breaker: Breaker, clock: Clock, max_running: int
    ) -> None:
        """`max_running` counts until the replica has said its own."""
        self.specialist = specialist
        self.name = f"{specialist}-{target.label}"
        self.target = target
        self.channel = channel
        self.generate = channel.unary_stream("/octet.v1.Specialist/Generate")
        self.count_tokens = channel.unary_unary("/octet.v1.Specialist/CountTokens")
        """Both bytes to bytes."""
        self.breaker = breaker
        self._clock = clock
        self._max_running = max_running
        self.inflight = 0
        self._epoch = 0
        self._since_report = 0
        """Requests sent since the last report, which cannot have counted them."""
        self.load: Load | None = None
        self.report: wire.LoadReport | None = None
        """What the load was taken from."""
        self._reported: float | None = None
        self.linked = False
        """There is a connection, as far as is known."""
        self.link = Link()
        """That connection, or the next one."""
        self._last_link: Link | None = None
        """The one before, until it is known whose it was."""
        self.warm = False
        """Its health says that it serves."""
        self._was_warm = False
        self.num_watches = 0
        """Of its load: reports are asked for, and so silence means something."""
        self.hung = False
        self._lost_hung = False
        """Its connection was given up while it hung."""
        self._back_since: float | None = None
        """When it was heard from again, until it has shown that it answers."""
        self.num_heard = 0
        """Reports and answers: whoever looks twice and finds the same has heard nothing."""

    @property
    def draining(self) -> bool:
        return self.load is not None and self.load.draining

    @property
    def should_report(self) -> bool:
        return self.linked and self.num_watches > 0

    @property
    def usable(self) -> bool:
        return self.linked and self.warm and not self.hung and not self.draining and self.breaker.would_allow

    def candidate(self, stale_seconds: float) -> Candidate:
        load = self.load
        if load is None or self._reported is None or self._clock.now() - self._reported > stale_seconds:
            depth, preempting, refusing = self.inflight, False, False
        else:
            depth, preempting = max(load.depth + self._since_report, self.inflight), load.preempting
            refusing = load.refusing
        return Candidate(
            name=self.name,
            depth=depth,
            max_running=self._max_running,
            preempting=preempting,
            adapters=load.adapters if load is not None else frozenset(),
            has_room=not refusing and depth < self._max_running,
            is_closed=self.draining or (self.linked and not self.warm),
            is_broken=not self.linked or self.hung or not self.breaker.would_allow,
        )

    def enter(self) -> int:
        """A request is sent to it, now. What comes back is handed to `leave`."""
        self.inflight += 1
        self._since_report += 1
        return self._epoch

    def leave(self, entered: int) -> None:
        self.inflight -= 1
        if entered == self._epoch:
            self._since_report -= 1

    def heard(self, report: wire.LoadReport) -> None:
        was_draining = self.draining
        if self.linked:
            self._identify(report)
        self.load, self.report = Load.of(report), report
        self._reported = self._clock.now()
        self._max_running = max(1, self.load.max_running)
        self._epoch += 1
        self._since_report = 0
        self.num_heard += 1
        if self.draining and not was_draining:
            _log.info("%s drains", self.name)
        if self.hung:
            _log.info("%s is heard from again", self.name)
            self.hung = False
            self._stirs()
        elif self._back_since is not None:
            self._is_back(self._back_since)

    def _stirs(self) -> None:
        """After it hung: the next request that is sent there is a probe."""
        self.breaker.stirs()
        self._back_since = self._clock.now()

    def _is_back(self, since: float) -> None:
        if self.breaker.state != "half_open":  # a probe has shown how it is
            self._back_since = None
        elif self._clock.now() - since >= _QUIET_SECONDS and self.breaker.would_allow:
            self._back_since = None
            self.breaker.succeeded()

    def _identify(self, report: wire.LoadReport) -> None:
        self.link.instance = report.instance
        self.link.drained = self.link.drained or report.draining
        if self._last_link is not None:
            self._last_link.survived = bool(report.instance) and self._last_link.instance == report.instance
            self._last_link = None

    def hangs(self, seconds: float) -> None:
        """Nothing was heard of it for so long, though its reports should come."""
        if not self.hung:
            _log.warning("%s hangs: not heard from for %.1f s", self.name, seconds)
            self.hung = True
            self.breaker.trip()

    def connected(self, warm: bool) -> None:
        """Its health was heard."""
        if not self.linked:
            self.linked = True
            if self._lost_hung:
                self._lost_hung = False
                self._stirs()
            else:
                self.breaker.succeeded()
        if warm != self.warm:
            self.warm = warm
            level = logging.INFO if self._was_warm else logging.DEBUG  # the first time is nothing to tell
            self._was_warm = True
            _log.log(level, "%s at %s %s", self.name, self.target.address, "serves" if warm else "does not serve")

    def lost(self, why: str) -> None:
        """The connection is gone. The replica behind the next one may be another."""
        if self.linked:
            _log.warning("%s at %s is lost: %s", self.name, self.target.address, why)
            self.link.lose(self._clock.now())
            self._last_link, self.link = self.link, Link()
        self._lost_hung = self._lost_hung or self.hung
        self.linked = self.warm = self.hung = False
        self._back_since = None
        self.load = self.report = None
        self.breaker.trip()
