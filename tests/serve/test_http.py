"""`octet serve` with HTTP: its address, restarts on the same port, and refusals."""

import json
import os
import re
import signal
import socket
import subprocess
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from octet import Client
from octet.cli import serve
from octet.client.errors import NoSpecialist
from octet.config.ensemble import DEFAULT_HTTP_PORT
from octet.config.loader import parse_ensemble
from tests.octet.supervisor.test_supervisor import is_alive
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.serve.ensemble import ROOT, TWO, ServeProcess, serving
from tests.serve.test_serve import octet_serve


def url_of(served: ServeProcess) -> str:
    (url,) = re.findall(r"octet ready on \S+ and (https?://\S+) \(", served.out)
    return str(url)


def chat(url: str) -> Any:
    asked = {"model": "octet/shell", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    request = Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"})  # noqa: S310
    with urlopen(request, timeout=PATIENCE) as response:  # noqa: S310
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
    drawn = serve._with_ports(two, Namespace(port=0, http_port=0, no_http=False)).router
    assert drawn.http is not None and {drawn.port, drawn.http.port} > {only}
    drawn = serve._with_ports(two, Namespace(port=0, http_port=only, no_http=False)).router
    assert drawn.http is not None and drawn.port != drawn.http.port == only
    assert serve._with_ports(two, Namespace(port=0, http_port=None, no_http=True)).router.http_listener is None
    with pytest.raises(ValueError, match="cannot both listen on port 8051"):
        serve._with_ports(two, Namespace(port=8051, http_port=None, no_http=False))


def test_taken_default_port_names_the_options(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    with socket.socket() as taken:
        with suppress(OSError):  # another program of this machine may have taken it
            taken.bind(("127.0.0.1", DEFAULT_HTTP_PORT))
            taken.listen()
        status, output = octet_serve(str(file), "--port", "0")
    assert status == 2 and len(output.splitlines()) == 1
    assert output.startswith("octet serve: cannot listen on 127.0.0.1:8051 (")
    for way in ("--http-port", "router.http.port", "--no-http", "`http: false`"):
        assert way in output


def test_your_own_file_is_a_whole_product(tmp_path: Path) -> None:
    """A file with one bare specialist: the dashboard opens, the printed command works, every request is answered."""
    with serving(tmp_path, "specialists: {writer: {engine: sim, max_tokens: 4}}\n") as served:
        url = url_of(served)
        with urlopen(f"{url}/", timeout=PATIENCE) as page:  # noqa: S310
            assert page.url == f"{url}/dashboard" and "text/html" in page.headers["content-type"]
        command = served.out.splitlines()[-1].removeprefix("  try: ")
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)  # noqa: S602
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        with Client(served.address) as client:
            for prompt in ("hi", "What is the capital of France?"):
                receipt = client.infer(prompt).receipt
                assert (receipt.specialist, receipt.decision.source) == ("writer", "default")
                assert receipt.why.startswith("writer is the only specialist; ")


def test_start_warns_of_specialists_that_no_text_leads_to(tmp_path: Path) -> None:
    with serving(tmp_path, "specialists: {a: {engine: sim}, b: {engine: sim}}\n", "--no-http") as served:
        assert served.err.startswith("octet serve: warning: a, b: without a description and examples, ")
        assert ", HTTP disabled) after " in served.out and "dashboard" not in served.out
        with Client(served.address) as client:
            with pytest.raises(NoSpecialist, match=r"octet/NAME over HTTP or in force_specialists; .* `default`"):
                client.infer("hi")
            assert client.infer("hi", force=["b"], max_tokens=4).receipt.specialist == "b"
        command = served.out.splitlines()[-1].removeprefix("  try: ")
        assert " generate hello --force a --address " in command


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
