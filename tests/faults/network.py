"""Separate networks for replicas, each behind a cable that can be cut, cut in one direction, or slowed."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.faults.commands import CommandFailed, run, want_of
from tests.forbidden import forbidden

_numbers = count()
_OURS = "88"
"""Marks the routes of this program, so that it can find them again."""
SLOW = ("tbf", "rate", "64kbit", "burst", "1600", "limit", "8000")


@dataclass(frozen=True, slots=True)
class Cable:
    """Connects this machine's network with another one."""

    name: str
    """Name of the other network and of the interface here."""
    here: str
    there: str
    """Addresses of both ends."""

    @property
    def before(self) -> tuple[str, ...]:
        """Command prefix that runs a program in the other network."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Drop packets at the other end: the route exists and nothing answers."""
        run("ip", "-n", self.name, "link", "set", "cable", "down")

    def mend(self) -> None:
        run("ip", "-n", self.name, "link", "set", "cable", "up")

    def silence(self) -> None:
        """Drop packets from there to here."""
        run("ip", "-n", self.name, "route", "add", "blackhole", f"{self.here}/32")

    def unsilence(self) -> None:
        run("ip", "-n", self.name, "route", "del", "blackhole", f"{self.here}/32")

    def deafen(self) -> None:
        """Drop packets from here to there."""
        run("ip", "route", "add", "blackhole", f"{self.there}/32", "proto", _OURS)

    def undeafen(self) -> None:
        run("ip", "route", "del", "blackhole", f"{self.there}/32", "proto", _OURS)

    def slow(self) -> None:
        """Limit both directions to 64 kbit/s."""
        run("tc", "qdisc", "add", "dev", self.name, "root", *SLOW)
        run(*self.before, "tc", "qdisc", "add", "dev", "cable", "root", *SLOW)

    def quicken(self) -> None:
        run("tc", "qdisc", "del", "dev", self.name, "root")
        run(*self.before, "tc", "qdisc", "del", "dev", "cable", "root")


def why_no_cables() -> str:
    """Why no network can be made here, or an empty string."""
    return want_of("ip", "tc", root=True) or _trial()


@cache
def _trial() -> str:
    """In a container, root may lack the right and the kernel the device type."""
    try:
        with _cable() as cable:
            cable.slow()
            cable.quicken()
    except CommandFailed as error:
        return forbidden(f"no cable can be laid: {error}")
    return ""


@contextmanager
def cables(number: int) -> Iterator[list[Cable]]:
    """Cables that are removed afterwards, with their routes. Skips where they cannot be made."""
    if reason := why_no_cables():
        pytest.skip(reason)
    _remove_stale()
    with ExitStack() as stack:
        yield [stack.enter_context(_cable()) for _ in range(number)]


@contextmanager
def _cable() -> Iterator[Cable]:
    number, pid = next(_numbers), os.getpid()
    name = f"of{pid}-{number}"
    begin = _begin(pid)
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


def _begin(pid: int) -> str:
    """An address range that depends on the process id."""
    return f"10.{64 + pid % 128}.{pid // 128 % 256}"


def _remove_stale() -> None:
    """Remove networks and routes that killed runs have left. One process at a time."""
    with Path(gettempdir(), "octet-faults.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        # Routes first: a route is made after its network.
        routes = re.findall(r"^blackhole (\S+)", run("ip", "route", "show", "proto", _OURS), re.MULTILINE)
        networks = re.findall(r"^(of(\d+)-\d+)\b", run("ip", "netns", "list"), re.MULTILINE)
        living = {pid for _, pid in networks if Path("/proc", pid).exists()}
        for name, pid in networks:
            if pid not in living:
                run("ip", "netns", "del", name)
        ours = {_begin(int(pid)) for pid in living}
        for address in routes:
            if address.rpartition(".")[0] not in ours:
                run("ip", "route", "del", "blackhole", address, "proto", _OURS)
