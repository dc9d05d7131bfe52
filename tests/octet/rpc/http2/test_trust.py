"""Our client believes the certificates that gRPC's own believes, and no others."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet.rpc.bind import Tls
from octet.rpc.http2.channel import Channel, Reading
from octet.rpc.http2.trust import trusting
from tests.octet.rpc.http2.peer import scenes
from tests.octet.rpc.http2.servers import Real, outcome, served, stream
from tests.service.test_tls import openssl, pki

__all__ = ["pki"]

READING = Reading(most_message=1 << 20, lookahead=256)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CA of somebody else."""
    directory = tmp_path_factory.mktemp("stranger")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(directory, *new, "-subj", "/CN=other", "-keyout", "ca.key", "-out", "ca.pem")
    return directory / "ca.pem"


@pytest.mark.parametrize(
    ("case", "expected", "why"),
    [
        ("good", "OK", ""),
        ("pinned", "OK", ""),
        ("wrong CA", grpc.StatusCode.UNAVAILABLE, "certificate verify failed"),
        ("wrong name", grpc.StatusCode.UNAVAILABLE, "not valid for 'somebody.else'"),
        ("no certificate", grpc.StatusCode.UNAVAILABLE, ""),
        ("no TLS", grpc.StatusCode.UNAVAILABLE, ""),
    ],
)
def test_certificates_are_believed_alike(pki: Path, stranger: Path, case: str, expected: object, why: str) -> None:
    ca = {"wrong CA": stranger, "pinned": pki / "replica.pem"}.get(case, pki / "ca.pem")
    own = (None, None) if case == "no certificate" else (pki / "caller.pem", pki / "caller.key")
    name = "somebody.else" if case == "wrong name" else ""

    async def story() -> None:
        tls = Tls(pki / "replica.pem", pki / "replica.key", client_ca=pki / "ca.pem")
        async with served(tls) as real:
            ours = Channel(real.address, READING, None if case == "no TLS" else trusting(ca, *own), name)
            told = await outcome(stream(ours, "Count", b"1 1", timeout=10))
            assert told[1] == expected
            assert expected == "OK" or why in told[2]
            await ours.close()
            assert (await outcome(stream(_theirs(real, ca, own, name, case), "Count", b"1 1", timeout=10)))[
                1
            ] == expected

    scenes(story)


def _theirs(real: Real, ca: Path, own: tuple[Path | None, Path | None], name: str, case: str) -> Any:
    if case == "no TLS":
        return grpc.aio.insecure_channel(real.address)
    certificate, key = (None if path is None else path.read_bytes() for path in own)
    shown = grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)
    expected = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.aio.secure_channel(real.address, shown, options=expected)


def test_who_does_not_speak_http2_behind_its_certificate_is_left(pki: Path) -> None:
    async def story() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "replica.pem", pki / "replica.key")
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ours = Channel(address, READING, trusting(pki / "ca.pem"))
        told = await outcome(stream(ours, "Count", b"1 1", timeout=10))
        assert told[1] is grpc.StatusCode.UNAVAILABLE and "HTTP/2" in told[2]
        await ours.close()
        server.close()
        await asyncio.sleep(0.05)

    scenes(story)


def test_files_that_cannot_be_used_are_named(pki: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for files in ((tmp_path / "none",), (empty,), (pki / "ca.pem", pki / "caller.pem", pki / "replica.key")):
        with pytest.raises(OSError, match=r"none|empty|caller"):
            trusting(*files)
