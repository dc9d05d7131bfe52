"""A separate network for each replica, behind a virtual link that can be cut, cut in one direction, or slowed."""

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
"""Marks the routes that these tests create, so that they can find them again."""
SLOW = ("tbf", "rate", "64kbit", "burst", "1600", "limit", "8000")


@dataclass(frozen=True, slots=True)
class VirtualLink:
    """A virtual link between the main network and a network namespace."""

    name: str
    """Name of the namespace, and of the link's interface in the main network."""
    here: str
    there: str
    """Addresses of both ends of the link."""

    @property
    def before(self) -> tuple[str, ...]:
        """Command prefix that runs a program in the namespace."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Take the far end of the link down. The route still exists, so packets get no reply."""
        run("ip", "-n", self.name, "link", "set", "veth0", "down")

    def mend(self) -> None:
        run("ip", "-n", self.name, "link", "set", "veth0", "up")

    def silence(self) -> None:
        """Drop packets from the namespace to the main network."""
        run("ip", "-n", self.name, "route", "add", "blackhole", f"{self.here}/32")

    def unsilence(self) -> None:
        run("ip", "-n", self.name, "route", "del", "blackhole", f"{self.here}/32")

    def deafen(self) -> None:
        """Drop packets from the main network to the namespace."""
        run("ip", "route", "add", "blackhole", f"{self.there}/32", "proto", _OURS)

    def undeafen(self) -> None:
        run("ip", "route", "del", "blackhole", f"{self.there}/32", "proto", _OURS)

    def slow(self) -> None:
        """Limit both directions to 64 kbit/s."""
        run("tc", "qdisc", "add", "dev", self.name, "root", *SLOW)
        run(*self.before, "tc", "qdisc", "add", "dev", "veth0", "root", *SLOW)

    def quicken(self) -> None:
        run("tc", "qdisc", "del", "dev", self.name, "root")
        run(*self.before, "tc", "qdisc", "del", "dev", "veth0", "root")


def why_no_virtual_links() -> str:
    """Return why virtual network links cannot be created here, or an empty string."""
    return want_of("ip", "tc", root=True) or _trial()


@cache
def _trial() -> str:
    """Return why no link can be created, or an empty string. A container may forbid it even to root, and a kernel may
    lack the device type."""
    try:
        with _virtual_link() as link:
            link.slow()
            link.quicken()
    except CommandFailed as error:
        return forbidden(f"no virtual network link can be created: {error}")
    return ""


@contextmanager
def virtual_links(number: int) -> Iterator[list[VirtualLink]]:
    """Create virtual links, and remove them and their routes afterwards. Skip the test if they cannot be created."""
    if reason := why_no_virtual_links():
        pytest.skip(reason)
    _remove_stale()
    with ExitStack() as stack:
        yield [stack.enter_context(_virtual_link()) for _ in range(number)]


@contextmanager
def _virtual_link() -> Iterator[VirtualLink]:
    number, pid = next(_numbers), os.getpid()
    name = f"of{pid}-{number}"
    begin = _begin(pid)
    link = VirtualLink(name, f"{begin}.{4 * number + 1}", f"{begin}.{4 * number + 2}")
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "veth0", "netns", name)
        run("ip", "addr", "add", f"{link.here}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run("ip", "-n", name, "addr", "add", f"{link.there}/30", "dev", "veth0")
        link.mend()
        yield link
    finally:
        run("ip", "netns", "del", name)


def _begin(pid: int) -> str:
    """Return an address prefix that depends on the process id."""
    return f"10.{64 + pid % 128}.{pid // 128 % 256}"


def _remove_stale() -> None:
    """Remove networks and routes that killed runs have left behind. A lock admits one process at a time."""
    with Path(gettempdir(), "octet-faults.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        # List the routes first: a route is created after its network, so every listed route's network is in the list.
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
