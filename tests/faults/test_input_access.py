"""Rows 22 and 24 of docs/reliability.md: latency reveals nothing about other tenants' prompts; only valid certificates
are accepted."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from octet.client.replica import SpecialistClient
from octet.rpc.certificates import Tls
from octet.v1 import specialist_pb2 as wire
from router.api.keys.key_file import StaticKeys
from router.dispatch.transport import ReplicaTls
from tests.faults.figures import Figure
from tests.patience import PATIENCE
from tests.router.keys.keyed import issue_key, key_set
from tests.router.keys.test_isolation import COST, LANES, Probes, probe
from tests.router.serving.harness import infer_request, running_router
from tests.specialist.server.harness import ReplicaHarness, generate_request, running_replica, sim
from tests.specialist.server.harness import ask as ask_replica
from tests.specialist.server.test_tls import openssl, pki

__all__ = ["pki"]
NUM_PROBES = 2_000
_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_AUTHORITY = """
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
serial = serial
policy = named
default_md = sha256
x509_extensions = leaf
[named]
commonName = supplied
[leaf]
subjectAltName = IP:127.0.0.1
basicConstraints = critical, CA:FALSE
"""


@pytest.fixture(scope="module")
def chains(pki: Path) -> Path:
    """Return a folder with invalid certificates: expired, signed by another authority, self-signed, and for another
    address."""
    (pki / "authority.cnf").write_text(_AUTHORITY)
    (pki / "index.txt").touch()
    (pki / "serial").write_text("01\n")
    openssl(pki, "req", "-new", *_NEW, "-subj", "/CN=expired", "-keyout", "expired.key", "-out", "expired.csr")
    dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
    by = ("-config", "authority.cnf", "-cert", "ca.pem", "-keyfile", "ca.key")
    openssl(pki, "ca", "-batch", "-notext", *by, *dates, "-in", "expired.csr", "-out", "expired.pem")
    own = ("req", "-x509", "-days", "2", *_NEW, "-addext", "basicConstraints=critical,CA:FALSE")
    here = ("-addext", "subjectAltName=IP:127.0.0.1")
    openssl(pki, "req", "-x509", "-days", "2", *_NEW, "-subj", "/CN=other", "-keyout", "other.key", "-out", "other.pem")
    by_other, by_ours = ("-CA", "other.pem", "-CAkey", "other.key"), ("-CA", "ca.pem", "-CAkey", "ca.key")
    openssl(pki, *own, *by_other, *here, "-subj", "/CN=stranger", "-keyout", "stranger.key", "-out", "stranger.pem")
    openssl(pki, *own, *here, "-subj", "/CN=alone", "-keyout", "alone.key", "-out", "alone.pem")
    elsewhere = ("-addext", "subjectAltName=DNS:elsewhere.invalid", "-subj", "/CN=elsewhere")
    openssl(pki, *own, *by_ours, *elsewhere, "-keyout", "elsewhere.key", "-out", "elsewhere.pem")
    return pki


VALID_CALLER, VALID_REPLICA = "caller", "replica"
"""Names of the only certificates that are accepted. What the others get is awaited for seconds only."""


async def _is_served(served: ReplicaHarness, ca: Path, name: str) -> bool:
    certificate, key = (ca.parent / f"{name}.pem", ca.parent / f"{name}.key") if name else (None, None)
    async with SpecialistClient(served.address, ca=ca, certificate=certificate, key=key) as client:
        received = await ask_replica(client, generate_request(), timeout=PATIENCE if name == VALID_CALLER else 5)
        if received.error is not None:
            assert received.accepted is None
            assert received.error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return received.error is None


async def _is_used(chains: Path, shown: str) -> bool:
    """Return whether a router calls a replica that presents this certificate."""
    tls = Tls(chains / f"{shown}.pem", chains / f"{shown}.key", client_ca=chains / "ca.pem")
    trust = ReplicaTls(chains / "ca.pem", chains / "caller.pem", chains / "caller.key")
    async with (
        running_replica(tls=tls) as served,
        running_router({"writer": [served.address]}, replica_tls=trust, warm=False) as routed,
    ):
        if shown == VALID_REPLICA:
            await routed.until(lambda: routed.server.fleet.replica_sets["writer"].is_usable)
            return (await routed.ask(infer_request())).code is grpc.StatusCode.OK
        await asyncio.sleep(2.0)
        return (await routed.ask(infer_request(timeout_ms=2000))).code is grpc.StatusCode.OK


async def _answers_without_tls(served: ReplicaHarness) -> bool:
    """Return whether the server answers a call without TLS."""
    async with grpc.aio.insecure_channel(served.address) as channel:
        try:
            await channel.unary_unary("/octet.v1.Specialist/Describe")(
                wire.DescribeRequest().SerializeToString(), timeout=2
            )
        except grpc.aio.AioRpcError:
            return False
        return True


async def test_24_only_the_right_certificate_chain_is_accepted(chains: Path, figure: Figure) -> None:
    tls = Tls(chains / "replica.pem", chains / "replica.key", client_ca=chains / "ca.pem")
    async with running_replica(tls=tls) as served:
        callers = (VALID_CALLER, "", "stranger", "expired", "alone")
        by_caller = {name: await _is_served(served, chains / "ca.pem", name) for name in callers}
        assert not await _answers_without_tls(served)
    by_replica = {name: await _is_used(chains, name) for name in (VALID_REPLICA, "elsewhere", "stranger", "expired")}
    assert by_caller.pop(VALID_CALLER) and by_replica.pop(VALID_REPLICA), "the valid certificates must be accepted"
    let_in = sum(by_caller.values()) + sum(by_replica.values())
    figure(24, "invalid certificate chains tried", len(by_caller) + len(by_replica), "chains", ">= 5 chains")
    figure(24, "accepted chains", let_in, "chains", "== 0 chains")


def test_24_the_expired_certificate_is_otherwise_valid(chains: Path) -> None:
    """Control: the certificate is refused because it has expired, and for no other reason."""
    shown = ssl.create_default_context(cafile=str(chains / "ca.pem"))
    shown.load_cert_chain(chains / "expired.pem", chains / "expired.key")
    expired = ssl._ssl._test_decode_cert(str(chains / "expired.pem"))  # type: ignore[attr-defined]
    assert expired["notAfter"].endswith("2020 GMT") and expired["issuer"] == ((("commonName", "ca"),),)


@pytest.mark.slow
async def test_22_two_thousand_probes_reveal_nothing_of_another_tenant(figure: Figure) -> None:
    """The same test as in tests/router/keys/test_isolation.py, with four times as many probes."""
    victim, same, other = issue_key("victim", tenant="a"), issue_key("same", tenant="a"), issue_key("other", tenant="b")
    async with AsyncExitStack() as house:
        replicas = {}
        for lane in LANES:
            build = sim(COST, name=lane, num_blocks=1024, context=512)
            replicas[lane] = [(await house.enter_async_context(running_replica(build))).address]
        keys = StaticKeys(key_set(victim, same, other))
        routed = await house.enter_async_context(running_router(replicas, keys=keys))
        control, apart = Probes(), Probes()
        await probe(routed, victim, same, len(LANES) * 10, Probes(), seed=0)
        await probe(routed, victim, same, 200, control, seed=1)
        await probe(routed, victim, other, NUM_PROBES, apart, seed=22)
        figure(22, "AUC within a tenant (control)", control.reported, "", ">= 0.9")
        figure(22, "AUC across tenants, distance from 0.5", abs(apart.reported - 0.5), "", "<= 0.05")
        figure(22, "tokens found across tenants", apart.most_found, "tokens", "== 0 tokens")
