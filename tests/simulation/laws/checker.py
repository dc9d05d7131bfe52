"""Collect broken laws, and the log messages that a script's faults excuse."""

import logging
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from octet.fault_points import fault_message
from simulation.event_loop import HeapLoop
from tests.simulation.laws.scheduler import LawBroken
from tests.simulation.script import REPLICA_FAULTS, Script

_OF_FAULTS = ("injected", "the engine did not complete the step")
"""Log messages that injected engine faults cause."""
_OF_AN_ABSENT_STORE = "the store does not answer"
"""Log message when a change is in force but not yet stored."""
_OF_LOST_REPLICAS = "quarantined content"
"""Log message after several replicas have died while serving the same content."""


def excuses_of(script: Script) -> tuple[str, ...]:
    """Return the substrings that excuse a logged error in this script."""
    setup = script.setup
    found = [fault_message(point) for point in setup.fault_points]
    if setup.fault_rate:
        found += _OF_FAULTS
    if "store.away" in setup.fault_points:
        found.append(_OF_AN_ABSENT_STORE)
    if "step.dies" in setup.fault_points or any(fault.kind in REPLICA_FAULTS for fault in script.faults):
        found.append(_OF_LOST_REPLICAS)
    return tuple(found)


class LawViolation(AssertionError):
    """A law is broken. The message starts with the law."""


class LawChecker:
    """Records a run: a hash of its history, counts of what occurred, and the first broken law."""

    def __init__(self, loop: HeapLoop, *, keep: bool = False) -> None:
        self._loop = loop
        self._hash = sha256()
        self.lines: list[str] | None = [] if keep else None
        """The lines of the history, if they are kept."""
        self.seen: Counter[str] = Counter()
        self.broken: LawViolation | None = None

    def note(self, line: str) -> None:
        """Append a line to the history."""
        line = f"{self._loop.time():.6f} {line}"
        self._hash.update(line.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(line)

    def see(self, occurrence: str) -> None:
        """Count an occurrence."""
        self.seen[occurrence] += 1

    def digest(self) -> str:
        self.note(f"{self._loop.num_events} events")
        return self._hash.hexdigest()

    def require(self, holds: bool, law: str, *about: object) -> None:
        if not holds and self.broken is None:
            details = ", ".join(str(each) for each in about)
            self.broken = LawViolation(f"{law}: {details[:400]}")

    def blame(self, error: BaseException | None, law: str, *about: object) -> None:
        """Record an unexpected error as a broken law."""
        if isinstance(error, LawBroken):
            self.require(False, str(error))
        self.require(False, law, *about, repr(error))

    def try_all(self, check: Callable[[], None]) -> None:
        """Run the check. Record the broken law, or any other error, that it raises."""
        try:
            check()
        except LawBroken as broken:
            self.require(False, str(broken))
        except Exception as error:
            self.require(False, f"{type(error).__name__}", error)

    def after_event(self) -> None:
        """Raise the first broken law, if there is one. An error in the event loop is recorded as a broken law."""
        if self.broken is not None:
            raise self.broken
        if self._loop.errors:
            complaint = self._loop.errors[0]
            error = complaint.get("exception")
            self.require(False, "no error is swallowed", complaint.get("message"), repr(error))


_NAMES = ("router", "specialist", "octet", "admission")


class ErrorLogWatcher(logging.Handler):
    """Captures error logs inside its `with` block. An error without an excuse breaks a law."""

    def __init__(self, checker: LawChecker, excuses: tuple[str, ...]) -> None:
        super().__init__(logging.WARNING)
        self._checker = checker
        self._excuses = excuses
        self._before: list[tuple[logging.Logger, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            return
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        words = f"{message} {error}"
        if not any(each in words for each in self._excuses):
            _, _, law = message.partition(f"{LawBroken.__name__}: ")
            self._checker.require(not law, law)
            self._checker.blame(error, "no error without an injected fault", record.name, message)

    def __enter__(self) -> "ErrorLogWatcher":
        for name in _NAMES:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.propagate))
            logger.propagate = False
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger, propagate in self._before:
            logger.propagate = propagate
            logger.removeHandler(self)
        self._before.clear()
