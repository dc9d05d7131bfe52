"""Which API key a client sends, and when it sends none."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest

from octet import AsyncClient, Busy, Client, Forbidden, NotFound, Operator, Unauthenticated
from octet.addresses import is_local
from octet.cli import main
from octet.client.channel import ApiKey
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness
from tests.router.keys.keyed import issue_key, running_keyed_router
from tests.specialist.server.harness import run

ANN, OPS, FEW = issue_key("ann"), issue_key("ops", "operate"), issue_key("few", requests_per_minute=1)


@contextmanager
def router() -> Iterator[str]:
    """Yield the address of a router that requires keys and runs in its own thread."""
    ready, found, done = Event(), list[HttpHarness](), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        async with running_keyed_router([ANN, OPS, FEW]) as fronted:
            end = asyncio.Event()
            found.append(fronted)
            done.append((asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield found[0].routed.address
    finally:
        for loop, end in done:
            loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with router() as found:
            yield found


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTET_API_KEY", raising=False)


def test_client_sends_its_key_with_every_call(address: str) -> None:
    with Client(address, api_key=ANN.token) as client:
        with client.stream("x", force="writer", max_tokens=2) as answer:
            assert "".join(chunk.text for chunk in answer) is not None
        assert client.receipt(answer.request_id).caller == "ann"
        assert client.route("x", force="writer").specialist == ""
        with pytest.raises(NotFound):
            client.cancel("nothing")
    with Operator(address, api_key=OPS.token) as operator:
        assert [breaker.specialist for breaker in operator.breakers().breakers] == ["writer"]
        assert all(entry.who for entry in operator.audit())
        with Client(address, api_key=OPS.token) as client:
            assert client.receipt(answer.request_id, tenant="ann").tenant == "ann"

    async def ask() -> str:
        async with AsyncClient(address, api_key=ANN.token) as client:
            async with client.stream("x", force="writer", max_tokens=2) as received:
                _ = [chunk async for chunk in received]
            return (await client.infer("x", force="writer", max_tokens=2)).receipt.tenant

    assert run(ask()) == "ann"


def test_key_defaults_to_the_environment(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTET_API_KEY", f" {ANN.token}\n")
    with Client(address) as client:
        assert client.infer("x", force="writer", max_tokens=2).receipt.caller == "ann"
    with Client(address, api_key=OPS.token) as client:
        assert client.infer("x", force="writer", max_tokens=2).receipt.caller == "ops"


def test_key_errors_are_typed(address: str) -> None:
    with Client(address) as client, pytest.raises(Unauthenticated, match="OCTET_API_KEY") as caught:
        client.infer("x")
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    with Client(address, api_key="octet_wrong") as client, pytest.raises(Unauthenticated) as caught:
        client.infer("x")
    assert "octet_wrong" not in str(caught.value)
    with Operator(address, api_key=ANN.token) as operator, pytest.raises(Forbidden, match="'operate'"):
        operator.breakers()
    with Client(address, api_key=FEW.token, max_retries=0) as client:
        client.infer("x", force="writer", max_tokens=2)
        with pytest.raises(Busy, match="try again in") as limited:
            client.infer("x", force="writer", max_tokens=2)
    assert limited.value.reason == "key_limit" and limited.value.retry_after is not None


@pytest.mark.parametrize("kind", [Client, AsyncClient, Operator])
def test_key_is_not_sent_to_another_machine_unencrypted(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unencrypted") as caught:
        kind("router.example:50051", api_key=ANN.token)
    assert ANN.token not in str(caught.value)
    kind("router.example:50051", api_key=ANN.token, insecure=True)
    kind("router.example:50051")
    monkeypatch.setenv("OCTET_API_KEY", ANN.token)
    with pytest.raises(ValueError, match="unencrypted"):
        kind("router.example:50051")


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("dns:///localhost:1", True),
        ("unix:/tmp/x", True),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
        ("127.0.0.1.example:1", False),
        ("dns:///127.0.0.1@example:1", False),
        ("dns://127.0.0.1/example:1", False),
        ("[::]:1", False),
        ("example", False),
        ("", False),
    ],
)
def test_local_addresses(address: str, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize("text", ["", "two words", "ein Schlüssel", "a\nb", "a\x00"])
def test_key_that_no_header_can_carry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        Client(api_key=text)
    assert not text or text not in str(caught.value)
    assert ANN.token not in repr(ApiKey(ANN.token))


def test_commands_read_the_key_from_a_file(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in (("ann", ANN), ("ops", OPS)):
        (tmp_path / name).write_text(f"{key.token}\n")
    at = ("--address", address)
    ask = ("generate", "x", "--force", "writer", "--max-tokens", "2", "--request-id", "known", *at)
    assert main([*ask, "--api-key-file", str(tmp_path / "ann")]) == 0
    assert main(["receipt", "known", *at, "--api-key-file", str(tmp_path / "ann")]) == 0
    assert "ann, tenant ann" in capsys.readouterr().out
    assert main(["receipt", "known", "--tenant", "ann", *at, "--api-key-file", str(tmp_path / "ops")]) == 0
    assert main(["knobs", *at, "--api-key-file", str(tmp_path / "ops")]) == 0
    assert main(["knobs", "release", "x.priority_floor", *at, "--api-key-file", str(tmp_path / "ann")]) == 2
    assert "needs the role 'operate'" in capsys.readouterr().err
    assert main([*ask]) == 2
    assert main([*ask, "--api-key-file", str(tmp_path / "absent")]) == 2
    assert main(["receipt", "known", "--address", "router.example:1", "--api-key-file", str(tmp_path / "ann")]) == 2
    assert "unencrypted" in capsys.readouterr().err
    monkeypatch.setenv("OCTET_API_KEY", ANN.token)
    assert main(["receipt", "known", *at]) == 0


def test_router_does_not_start_unprotected_on_a_public_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "ensemble.yaml"
    config.write_text("specialists: {writer: {engine: sim, addresses: ['127.0.0.1:1']}}\n")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    everywhere = ("--host", "0.0.0.0")  # noqa: S104
    tls = ("--tls-certificate", str(config), "--tls-key", str(config))
    for arguments, environment, result in (
        (everywhere, {}, "--tls-certificate"),
        ((*everywhere, *tls), {}, "no API keys are configured"),
        (("--http-port", "0", "--http-host", "0.0.0.0", *tls), {}, "no API keys are configured"),  # noqa: S104
        (("--no-http", "--keys", str(broken)), {}, "broken.json: the content must be"),
        (("--no-http",), {"OCTET_KEYS": '{"keys": 1}'}, "must be"),
        (("--no-http",), {"OCTET_KEYS": str(tmp_path / "absent.json")}, "absent.json"),
    ):
        monkeypatch.setenv("OCTET_KEYS", environment.get("OCTET_KEYS", ""))
        assert main(["router", "--config", str(config), "--port", "0", *arguments]) == 2
        output = capsys.readouterr()
        assert result in output.err and not output.out
