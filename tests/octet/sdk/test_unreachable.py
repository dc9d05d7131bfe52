"""Nothing answers: why, as far as anybody knows, and what to do."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet import Client, Unavailable
from tests.octet.sdk.server import Script, handler, scripted
from tests.service.test_tls import pki

__all__ = ["pki"]


def told(address: str, **settings: Any) -> str:
    with Client(address, max_retries=0, **settings) as client, pytest.raises(Unavailable) as caught:
        client.infer("x", timeout=5)
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
        server.stop(0).wait(10)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1"])
def test_where_nothing_listens_here_it_can_be_started(address: str) -> None:
    assert told(address) == f"nothing answers at {address}; start it with: octet serve"


def test_a_name_that_does_not_exist_is_the_reason() -> None:
    said = told("nowhere.invalid:50051")
    assert said.startswith("nothing answers at nowhere.invalid:50051: its name cannot be looked up")
    assert "octet serve" not in said


@pytest.mark.parametrize("address", ["http://localhost:50051", "foo bar:1", "unix:/nowhere/at/all"])
def test_an_address_that_is_none_is_not_blamed_on_the_server(address: str) -> None:
    said = told(address)
    assert said.startswith(f"nothing answers at {address}: ") and "octet serve" not in said and len(said) < 200


def test_a_server_that_speaks_tls_wants_a_ca(pki: Path) -> None:
    with speaking_tls(pki) as port:
        assert told(f"127.0.0.1:{port}").endswith("if it speaks TLS, name its CA: --tls-ca")


def test_a_server_that_speaks_no_tls_or_shows_another_certificate(pki: Path) -> None:
    with scripted() as script:
        said = told(script.address, ca=pki / "ca.pem")
    assert said.startswith(
        f"no TLS connection to {script.address}: what listens there speaks none; leave --tls-ca away"
    )
    with speaking_tls(pki) as port:
        said = told(f"127.0.0.1:{port}", ca=pki / "caller.pem")
    assert said.startswith(f"no TLS connection to 127.0.0.1:{port}: Tls handshake failed")
    assert said.endswith("is --tls-ca what signed its certificate?")


def test_something_that_is_no_grpc_server_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]

        def greet() -> None:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        greeting = pool.submit(greet)
        said = told(f"127.0.0.1:{port}")
        greeting.result(5)
    assert said.startswith(f"nothing answers at 127.0.0.1:{port}: HTTP is spoken there") and "octet serve" not in said
