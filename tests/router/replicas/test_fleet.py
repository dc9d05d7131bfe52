"""Replicas appear and vanish with their addresses."""

import asyncio
import socket
from random import Random
from typing import Any

import pytest

from octet.clock import SystemClock
from octet.config.ensemble import DispatchConfig, Ensemble, SpecialistConfig
from router.dispatch.http2.channel import AddressInvalid
from router.dispatch.replicas import fleet as fleets
from router.dispatch.replicas.fleet import Fleet
from router.dispatch.transport import check_address, open_transport, resolve_targets
from tests.patience import PATIENCE


def fleet_of(**addresses: list[str]) -> Fleet:
    ensemble = Ensemble(specialists=tuple(SpecialistConfig(name) for name in addresses))
    return Fleet(ensemble, addresses, SystemClock(), Random(0), open_transport())


async def test_every_address_behind_a_name_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    behind: list[str] = ["10.0.0.2", "10.0.0.1"]
    num_failed = 0

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        nonlocal num_failed
        if not behind:
            num_failed += 1
            raise OSError("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, port)) for where in behind]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(fleets, "_RESOLVE_SECONDS", 0.02)
    fleet = fleet_of(stl=["dns:///stl.local:50151"], build=["127.0.0.1:1", "unix:/nowhere"])
    await fleet.start()
    try:
        assert names(fleet) == ["build-0", "build-1", "stl-10.0.0.1:50151", "stl-10.0.0.2:50151"]
        kept = fleet.replica_sets["stl"].replicas["stl-10.0.0.2:50151"]
        kept_open = kept.enter()
        behind[:] = ["10.0.0.2", "10.0.0.3"]
        await until(lambda: "stl-10.0.0.3:50151" in names(fleet))
        assert "stl-10.0.0.1:50151" not in names(fleet)
        assert fleet.replica_sets["stl"].replicas["stl-10.0.0.2:50151"] is kept, (
            "a replica that stays must keep its counts"
        )
        behind.clear()
        await until(lambda: num_failed >= 2)
        assert "stl-10.0.0.2:50151" in names(fleet), "a failed lookup must change nothing"
        kept.leave(kept_open)
    finally:
        await fleet.close()


async def test_a_replica_with_ipv4_and_ipv6_addresses_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    four = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{n}", 80)) for n in (2, 1)]
    six = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (f"fd00::{n}", 80, 0, 0)) for n in (2, 1)]
    for found, places in (
        ([*four, *six], ["10.0.0.1:80", "10.0.0.2:80"]),
        ([*six, *four], ["[fd00::1]:80", "[fd00::2]:80"]),
    ):

        async def getaddrinfo(*_: Any, found: list[Any] = found, **__: Any) -> list[Any]:
            return found

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        assert [target.address for target in await resolve_targets("dns:///pods:80")] == places


def names(fleet: Fleet) -> list[str]:
    return sorted(replica.name for replica in fleet.replicas)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_new_settings_apply_to_known_replicas() -> None:
    fleet = fleet_of(stl=["127.0.0.1:1"])
    await fleet.start()
    try:
        fleet.apply(Ensemble(specialists=(SpecialistConfig("stl"),), dispatch=DispatchConfig(failures=1)))
        (replica,) = fleet.replicas
        assert fleet.replica_sets["stl"].dispatch.failures == 1
        replica.breaker.failed()
        assert replica.breaker.state == "open"
    finally:
        await fleet.close()


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:0", "host:65536", ":80", "unix:", "dns:///x"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(AddressInvalid):
        check_address(address)


@pytest.mark.parametrize("address", ["host:1", "127.0.0.1:65535", "[::1]:5", "unix:/a/b", "unix:a", "dns:///x.y:80"])
def test_a_valid_address_is_accepted(address: str) -> None:
    check_address(address)
