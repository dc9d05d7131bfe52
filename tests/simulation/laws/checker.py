"""Collects broken laws, and the log lines that a script's faults explain."""

import logging
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from octet.fault_points import fault_message
from simulation.event_loop import HeapLoop
from tests.simulation.laws.scheduler import LawBroken
from tests.simulation.script import REPLICA_DEEDS, Script

_OF_FAULTS = ("injected", "the engine did not complete the step")
"""What engines' faults are called by those who meet them."""
_OF_AN_ABSENT_STORE = "the store does not answer"
"""Told where the error itself is not: a change is in force, and not yet written down."""
_OF_LOST_REPLICAS = "quarantined content"
"""So many replicas were lost with one content; its own doing or not."""


def excuses_of(script: Script) -> tuple[str, ...]:
    """Whatever is logged as an error has one of them in it."""
    setup = script.setup
    found = [fault_message(point) for point in setup.mishaps]
    if setup.fault_rate:
        found += _OF_FAULTS
    if "store.away" in setup.mishaps:
        found.append(_OF_AN_ABSENT_STORE)
    if "step.dies" in setup.mishaps or any(deed.kind in REPLICA_DEEDS for deed in script.deeds):
        found.append(_OF_LOST_REPLICAS)
    return tuple(found)


class Broken(AssertionError):
    """A law does not hold. The message begins with the law."""


class Court:
    """The history of a run, by its hash, what was seen in it, and the first law that was broken in it."""

    def __init__(self, loop: HeapLoop, *, keep: bool = False) -> None:
        self._loop = loop
        self._hash = sha256()
        self.lines: list[str] | None = [] if keep else None
        """The history itself, where somebody wants to read it."""
        self.seen: Counter[str] = Counter()
        self.broken: Broken | None = None

    def note(self, line: str) -> None:
        """Something that happened."""
        line = f"{self._loop.time():.6f} {line}"
        self._hash.update(line.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(line)

    def see(self, sight: str) -> None:
        """Something worth counting."""
        self.seen[sight] += 1

    def digest(self) -> str:
        self.note(f"{self._loop.num_events} events")
        return self._hash.hexdigest()

    def require(self, holds: bool, law: str, *about: object) -> None:
        if not holds and self.broken is None:
            told = ", ".join(str(each) for each in about)
            self.broken = Broken(f"{law}: {told[:400]}")

    def blame(self, error: BaseException | None, law: str, *about: object) -> None:
        """An error that should not be: itself a broken law, or that there is one."""
        if isinstance(error, LawBroken):
            self.require(False, str(error))
        self.require(False, law, *about, repr(error))

    def try_all(self, check: Callable[[], None]) -> None:
        """A check that raises where something is wrong."""
        try:
            check()
        except LawBroken as broken:
            self.require(False, str(broken))
        except Exception as error:
            self.require(False, f"{type(error).__name__}", error)

    def after_event(self) -> None:
        """Raises the first law that was broken."""
        if self.broken is not None:
            raise self.broken
        if self._loop.errors:
            complaint = self._loop.errors[0]
            error = complaint.get("exception")
            self.require(False, "nothing fails unheard", complaint.get("message"), repr(error))


_NAMES = ("router", "specialist", "octet", "admission")


class Unheard(logging.Handler):
    """While it is entered, nothing is logged anywhere else. `excuses` are words of what was done on purpose."""

    def __init__(self, court: Court, excuses: tuple[str, ...]) -> None:
        super().__init__(logging.WARNING)
        self._court = court
        self._excuses = excuses
        self._before: list[tuple[logging.Logger, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            return
        told = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        words = f"{told} {error}"
        if not any(each in words for each in self._excuses):
            _, _, law = told.partition(f"{LawBroken.__name__}: ")
            self._court.require(not law, law)
            self._court.blame(error, "nothing goes wrong unasked", record.name, told)

    def __enter__(self) -> "Unheard":
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
