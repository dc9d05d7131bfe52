"""The way of the engine's reports to the event loop."""

from collections import deque
from collections.abc import Callable

from specialist.server.engine_thread import EngineReport


class Outbox:
    """Keeps reports until the event loop takes them. The loop is woken only for a report that may not wait: each waking
    takes the interpreter from the engine's thread. It takes the others when it runs anyway: streams pull when their gap
    has passed, and every decision on a new request is made after a pull."""

    def __init__(self, deliver: Callable[..., object], wake: Callable[[Callable[[], None]], object]) -> None:
        """`deliver` gets the reports in order, on the event loop. `wake` runs a callback there, from any thread."""
        self._deliver = deliver
        self._wake = wake
        self._reports: deque[EngineReport] = deque()
        self._is_waking = False

    def put(self, report: EngineReport) -> None:
        """Called by the engine's thread, or by the event loop once that thread is dead."""
        self._reports.append(report)  # before the check: a stream becomes due first and pulls then
        if not self._is_waking and (report.is_urgent or any(served.stream.is_due for served, _ in report.updates)):
            self._is_waking = True
            self._wake(self.pull)

    def pull(self) -> None:
        """Deliver all reports. Called on the event loop."""
        self._is_waking = False
        while self._reports:
            self._deliver(*[self._reports.popleft() for _ in range(len(self._reports))])
