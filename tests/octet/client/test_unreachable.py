"""Errors for unreachable servers name the cause and a remedy."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet import Client, Unavailable
from tests.octet.client.server import Script, handler, scripted
from tests.patience import PATIENCE
from tests.specialist.server.test_tls import pki

__all__ = ["pki"]


def result(address: str, **settings: Any) -> str:
    with Client(address, max_retries=0, **settings) as client, pytest.raises(Unavailable) as caught:
        client.infer("x", timeout=PATIENCE)
    return str(caught.value)


@contextmanager
def speaking_tls(pki: Path) -> Iterator[int]:
    pair = ((pki / "replica.key").read_bytes(), (pki / "replica.pem").read_bytes())
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([handler(Script(()))])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait(PATIENCE)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1"])
def test_nothing_listening_locally_says_how_to_start(address: str) -> None:
    assert result(address) == f"nothing answers at {address}; start it with: octet serve"


def test_unresolvable_name_is_reported() -> None:
    output = result("nowhere.invalid:50051")
    assert output.startswith("nothing answers at nowhere.invalid:50051: the name cannot be resolved")
    assert "octet serve" not in output


@pytest.mark.parametrize("address", ["http://localhost:50051", "foo bar:1", "unix:/nowhere/at/all"])
def test_invalid_address_is_reported(address: str) -> None:
    output = result(address)
    assert output.startswith(f"nothing answers at {address}: ") and "octet serve" not in output and len(output) < 200


def test_tls_server_needs_a_ca(pki: Path) -> None:
    with speaking_tls(pki) as port:
        assert result(f"127.0.0.1:{port}").endswith("if it uses TLS, name its CA: --tls-ca")


def test_plaintext_server_and_wrong_certificate_are_reported(pki: Path) -> None:
    with scripted() as script:
        output = result(script.address, ca=pki / "ca.pem")
    assert output.startswith(f"no TLS connection to {script.address}: the server there does not use TLS; omit --tls-ca")
    with speaking_tls(pki) as port:
        output = result(f"127.0.0.1:{port}", ca=pki / "caller.pem")
    assert output.startswith(f"no TLS connection to 127.0.0.1:{port}: Tls handshake failed")
    assert output.endswith("did --tls-ca sign its certificate?")


def test_http_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]

        def greet() -> None:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        greeting = pool.submit(greet)
        output = result(f"127.0.0.1:{port}")
        greeting.result(PATIENCE)
    assert (
        output.startswith(f"no gRPC server answers at 127.0.0.1:{port}: an HTTP server listens there")
        and "octet serve" not in output
    )
