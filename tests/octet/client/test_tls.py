"""Clients with and without a certificate."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet import AsyncClient, Client, Unavailable
from octet.client.channel import channel_options
from tests.octet.client.server import Script, handler
from tests.patience import PATIENCE
from tests.specialist.server.harness import run
from tests.specialist.server.test_tls import pki

__all__ = ["pki"]


def test_only_a_caller_with_a_certificate_is_served(pki: Path) -> None:
    pair = ((pki / "replica.key").read_bytes(), (pki / "replica.pem").read_bytes())
    ca = (pki / "ca.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([handler(Script(()))])
    door = grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=True)
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', door)}"
    server.start()
    own: dict[str, Any] = {"ca": pki / "ca.pem", "certificate": pki / "caller.pem", "key": str(pki / "caller.key")}

    async def ask() -> str:
        async with AsyncClient(address, **own) as client:
            return (await client.infer("x")).text

    try:
        with Client(address, **own) as client:
            assert client.infer("x").text == run(ask()) == "one two three"
        with Client(address, ca=pki / "ca.pem", max_retries=0) as unknown, pytest.raises(Unavailable):
            unknown.infer("x", timeout=PATIENCE)
    finally:
        server.stop(0).wait(PATIENCE)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_invalid_tls_settings_are_refused(kind: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(ValueError, match="must be given together"):
        kind(ca="ca", key="k")
    with pytest.raises(ValueError, match="requires the server's CA"):
        kind(certificate="c", key="k")
    with pytest.raises(OSError, match="nowhere"):
        kind(ca="/nowhere")
    with pytest.raises(ValueError, match="keepalive must be at least 1 second, got 0"):
        kind(keepalive=0)


def test_keepalive_is_a_channel_option() -> None:
    assert set(channel_options(30)) - set(channel_options()) == {("grpc.keepalive_time_ms", 30_000)}
