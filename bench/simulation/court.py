"""Where what must hold is held against what happened."""

from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from bench.simulation.heap_loop import HeapLoop
from bench.simulation.scheduler_laws import LawBroken


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
        if self._loop.complaints:
            complaint = self._loop.complaints[0]
            error = complaint.get("exception")
            self.require(False, "nothing fails unheard", complaint.get("message"), repr(error))
