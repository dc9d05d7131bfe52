"""The HTTP/2 client trusts the same certificates as grpcio's client."""

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest

from octet.rpc.certificates import Tls
from router.dispatch.http2.call import ReadLimits
from router.dispatch.http2.channel import Http2Channel, client_tls_context
from router.dispatch.transport import ReplicaTarget, ReplicaTls, TransportKind, open_transport
from tests.patience import PATIENCE
from tests.router.http2.peer import run_on_both_loops
from tests.router.http2.servers import outcome, served, stream
from tests.specialist.server.test_tls import openssl, pki

__all__ = ["pki"]

READING = ReadLimits(max_message_bytes=1 << 20, lookahead=256)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the certificate of another CA."""
    directory = tmp_path_factory.mktemp("stranger")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(directory, *new, "-subj", "/CN=other", "-keyout", "ca.key", "-out", "ca.pem")
    return directory / "ca.pem"


@pytest.mark.parametrize("kind", ["http2", "grpc"])
@pytest.mark.parametrize(
    ("case", "expected", "why"),
    [
        ("good", "OK", ""),
        ("pinned", "OK", ""),
        ("wrong CA", grpc.StatusCode.UNAVAILABLE, "certificate verify failed"),
        ("wrong name", grpc.StatusCode.UNAVAILABLE, "not valid for 'another.name'"),
        ("no certificate", grpc.StatusCode.UNAVAILABLE, ""),
        ("no TLS", grpc.StatusCode.UNAVAILABLE, ""),
    ],
)
def test_both_transports_trust_the_same_certificates(
    pki: Path, stranger: Path, case: str, expected: object, why: str, kind: TransportKind
) -> None:
    ca = {"wrong CA": stranger, "pinned": pki / "replica.pem"}.get(case, pki / "ca.pem")
    own = (None, None) if case == "no certificate" else (pki / "caller.pem", pki / "caller.key")
    name = "another.name" if case == "wrong name" else ""

    async def scenario() -> None:
        tls = Tls(pki / "replica.pem", pki / "replica.key", client_ca=pki / "ca.pem")
        async with served(tls) as server:
            trust = None if case == "no TLS" else ReplicaTls(ca, *own)
            channel = open_transport(kind, trust)(ReplicaTarget("0", server.address, name), READING)
            result = await outcome(stream(channel, "Count", b"1 1", timeout=PATIENCE))
            assert result[1] == expected, result
            assert expected == "OK" or kind == "grpc" or why in result[2]
            await channel.close()

    run_on_both_loops(scenario)


def test_tls_server_without_http2_is_refused(pki: Path) -> None:
    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "replica.pem", pki / "replica.key")
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ours = Http2Channel(address, READING, client_tls_context(pki / "ca.pem"))
        outcome_of = await outcome(stream(ours, "Count", b"1 1", timeout=PATIENCE))
        assert outcome_of[1] is grpc.StatusCode.UNAVAILABLE and "HTTP/2" in outcome_of[2]
        await ours.close()
        server.close()
        await asyncio.sleep(0.05)

    run_on_both_loops(scenario)


def test_unusable_tls_files_are_named(pki: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for files in ((tmp_path / "none",), (empty,), (pki / "ca.pem", pki / "caller.pem", pki / "replica.key")):
        with pytest.raises(OSError, match=r"none|empty|caller"):
            client_tls_context(*files)
