"""`octet serve` with HTTP: its address, restarts on the same port, and refusals."""

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from octet.cli import serve
from octet.config.loader import parse_ensemble
from tests.octet.supervisor.test_supervisor import is_alive
from tests.ports import free_port
from tests.serve.ensemble import TWO, ServeProcess, serving
from tests.serve.test_serve import octet_serve


def url_of(served: ServeProcess) -> str:
    (url,) = re.findall(r"octet ready on \S+ and (https?://\S+) \(", served.out)
    return str(url)


def chat(url: str) -> Any:
    asked = {"model": "octet/shell", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    request = Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"})  # noqa: S310
    with urlopen(request, timeout=60) as response:  # noqa: S310
        return json.load(response)


def test_ready_line_names_http_and_a_restarted_router_keeps_its_port(tmp_path: Path) -> None:
    with serving(tmp_path, f"{TWO}router: {{http: {{port: 0}}}}\n") as served:
        url = url_of(served)
        assert urlsplit(url).port in serve.lasting_ports(), "no connection takes such a port while the router restarts"
        assert chat(url)["model"] == "octet/shell"
        victim = served.router
        os.kill(victim, signal.SIGKILL)
        served.until(lambda: not is_alive(victim))
        served.until(lambda: served.err.count(f" and {url} (") == 2)
        assert chat(url)["model"] == "octet/shell"


@pytest.mark.parametrize(
    ("ephemeral", "lasting"),
    [
        ("32768\t60999\n", range(15_000, 32_768)),
        ("16384\t49151\n", range(49_152, 65_536)),
        ("1024\t65535\n", range(0)),
        (None, range(15_000, 30_000)),
    ],
)
def test_drawn_ports_are_not_ephemeral(
    ephemeral: str | None, lasting: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ip_local_port_range"
    if ephemeral is not None:
        file.write_text(ephemeral)
    monkeypatch.setattr(serve, "_EPHEMERAL_PORTS", file)
    assert list(serve.lasting_ports()) == list(lasting)
    assert serve.find_free_port("127.0.0.1", "--port", ()) in (lasting or range(1, 65_536))


def test_drawn_ports_of_both_listeners_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    two, only = parse_ensemble(TWO, None), free_port()
    monkeypatch.setattr(serve, "lasting_ports", lambda: range(only, only + 1))
    drawn = serve._with_ports(two, 0, 0).router
    assert drawn.http is not None and {drawn.port, drawn.http.port} > {only}
    drawn = serve._with_ports(two, 0, only).router
    assert drawn.http is not None and drawn.port != drawn.http.port == only


@pytest.mark.parametrize("configured", [False, True])
def test_taken_port_names_the_option(tmp_path: Path, configured: bool) -> None:
    file = tmp_path / "two.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"{TWO}router: {{http: {{port: {port}}}}}\n" if configured else TWO)
        options = () if configured else ("--http-port", str(port))
        status, output = octet_serve(str(file), "--port", "0", *options)
    assert status == 2
    assert output.startswith(f"octet serve: cannot listen on 127.0.0.1:{port}") and "--http-port" in output


def test_public_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "open.yaml"
    file.write_text(f'{TWO}router: {{http: {{host: "0.0.0.0"}}}}\n')
    status, output = octet_serve(str(file), "--port", "0")
    assert status == 2 and "router.http.host 0.0.0.0 can be reached from other machines" in output
