"""Networks of their own for replicas, each behind a cable that can be cut, cut in one direction, or made slow."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

from tests.faults.commands import need, run, want_of

_numbers = count()
SLOW = ("tbf", "rate", "64kbit", "burst", "1600", "limit", "8000")


@dataclass(frozen=True, slots=True)
class Cable:
    """Between this machine's own network and another one, which has nothing else."""

    name: str
    """Of the other network; its end here is called the same."""
    here: str
    there: str
    """Both are addresses."""

    @property
    def before(self) -> tuple[str, ...]:
        """Words before those of a program that is to run there."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """At the other end: from here there is a way, and nothing answers."""
        run("ip", "-n", self.name, "link", "set", "cable", "down")

    def mend(self) -> None:
        run("ip", "-n", self.name, "link", "set", "cable", "up")

    def silence(self) -> None:
        """What is said there is not heard here."""
        run("ip", "-n", self.name, "route", "add", "blackhole", f"{self.here}/32")

    def unsilence(self) -> None:
        run("ip", "-n", self.name, "route", "del", "blackhole", f"{self.here}/32")

    def deafen(self) -> None:
        """What is said here is not heard there."""
        run("ip", "route", "add", "blackhole", f"{self.there}/32")

    def undeafen(self) -> None:
        run("ip", "route", "del", "blackhole", f"{self.there}/32")

    def slow(self) -> None:
        """64 kbit/s, both ways."""
        run("tc", "qdisc", "add", "dev", self.name, "root", *SLOW)
        run(*self.before, "tc", "qdisc", "add", "dev", "cable", "root", *SLOW)

    def quicken(self) -> None:
        run("tc", "qdisc", "del", "dev", self.name, "root")
        run(*self.before, "tc", "qdisc", "del", "dev", "cable", "root")


def want_of_cables() -> str:
    """Why none can be laid here; empty if they can."""
    return want_of("ip", "tc", root=True)


@contextmanager
def cables(number: int) -> Iterator[list[Cable]]:
    """Gone afterwards, and every route with them. Skips where they cannot be laid."""
    need("ip", "tc", root=True)
    with ExitStack() as stack:
        yield [stack.enter_context(_cable()) for _ in range(number)]


@contextmanager
def _cable() -> Iterator[Cable]:
    number, pid = next(_numbers), os.getpid()
    name = f"of{pid % 100_000}-{number}"
    begin = f"10.{64 + pid % 128}.{pid // 128 % 256}"
    cable = Cable(name, f"{begin}.{4 * number + 1}", f"{begin}.{4 * number + 2}")
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", name)
        run("ip", "addr", "add", f"{cable.here}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run("ip", "-n", name, "addr", "add", f"{cable.there}/30", "dev", "cable")
        cable.mend()
        yield cable
    finally:
        run("ip", "netns", "del", name)
