"""An error is printed as one line with advice, and the exit status depends on its kind."""

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from octet.cli import main
from octet.cli.arguments import check_address
from octet.terminal import install_hint
from tests.octet.cli.chat.terminal import ROOT, in_terminal
from tests.octet.cli.commands.tree import root
from tests.octet.client.server import scripted
from tests.octet.client.test_unreachable import speaking_tls
from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
Captured = pytest.CaptureFixture[str]
PIPE_CLOSED = 141


def error_line(capsys: Captured) -> str:
    """Return the only line of stderr; stdout must be empty."""
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert output.out == ""
    return str(line)


@pytest.mark.parametrize("arguments", [("check",), ("completion", "bash"), ("generate", "--help")])
def test_closed_pipe_ends_quietly(arguments: tuple[str, ...]) -> None:
    """The pipe is closed early, as by `octet check | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "octet.cli", *arguments]
        env = {**os.environ, "PYTHONUNBUFFERED": ""}
        ended = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, env=env)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (PIPE_CLOSED, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_reported(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "octet.cli", "check"]
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (ended.returncode, ended.stderr) == (2, "octet: standard output: No space left on device\n")


_BARE = """
import sys
for name in "rich shtab numpy torch yaml llguidance uvloop starlette tokenizers jinja2 safetensors".split():
    sys.modules[name] = None
from octet.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command as if only the packages for callers were installed."""


def bare(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", _BARE, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "extra"), [("serve", "serve"), ("router --port 1", "router"), ("specialist --engine sim", "serve")]
)
def test_missing_package_names_the_install_command(command: str, extra: str) -> None:
    ended = bare(*command.split())
    assert ended.returncode == 2
    name = command.split()[0]
    assert re.fullmatch(rf"octet {name}: \w+ is not installed; {re.escape(install_hint(extra))}\n", ended.stderr)


def test_base_install_shows_the_whole_help() -> None:
    ended = bare("--help")
    output = " ".join(ended.stdout.split())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"router not installed: {install_hint('router')}" in output
    assert f"completion not installed: {install_hint('cli')}" in output and "generate send a prompt" in output


@pytest.mark.parametrize(
    "address", ["", "localhost", "50051", "http://127.0.0.1:8051", "https://x:1", "x:0", "x:99999", "a b:1", ":1"]
)
def test_invalid_address_is_refused_before_any_lookup(address: str, capsys: Captured) -> None:
    for command in (("generate", "x"), ("knobs",), ("jobs", "list"), ("route", "x")):
        assert main([*command, f"--address={address}"]) == 2
        line = error_line(capsys)
        assert line.startswith(
            f"octet {' '.join(command).removesuffix(' x')}: --address must be HOST:PORT (such as 127.0.0.1:50051)"
        )
        assert repr(address) in line and ("without http://" in line) == ("://" in address)


@pytest.mark.parametrize("address", ["localhost:50051", "[::1]:1", "unix:/tmp/x", "dns:///name:1", "10.0.0.1:65535"])
def test_every_grpc_address_form_is_accepted(address: str) -> None:
    check_address(address)


def test_http_port_is_recognised(capsys: Captured) -> None:
    """Callers often give the HTTP port of the router instead of its gRPC port."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]

        server.settimeout(0.1)
        over = Event()

        def greet() -> None:
            while not over.is_set():
                with suppress(OSError):
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        pool.submit(greet)
        try:
            status = main(["route", "x", "--address", f"127.0.0.1:{port}"])
        finally:
            over.set()
    assert status == 3
    assert error_line(capsys) == (
        f"octet route: no gRPC server answers at 127.0.0.1:{port}: an HTTP server listens there; gRPC has its own port"
    )


def test_tls_mismatch_is_explained(pki: Path, tmp_path: Path, capsys: Captured) -> None:
    ask = ("route", "x", "--timeout", "5", "--address")
    with scripted() as script:
        assert main([*ask, script.address, "--tls-ca", str(pki / "ca.pem")]) == 3
        assert "does not use TLS; omit --tls-ca, or start it with TLS" in error_line(capsys)
        no_certificate = tmp_path / "notes.txt"
        no_certificate.write_text("nothing")
        assert main([*ask, script.address, "--tls-ca", str(no_certificate)]) == 3
        assert "--tls-ca must be a PEM file with certificates" in error_line(capsys)
        assert main([*ask, script.address, "--tls-ca", str(tmp_path / "nowhere.pem")]) == 2
        assert error_line(capsys) == f"octet route: {tmp_path}/nowhere.pem: No such file or directory"
    with speaking_tls(pki) as port:
        assert main([*ask, f"127.0.0.1:{port}"]) == 3
        assert error_line(capsys).endswith("if it uses TLS, name its CA: --tls-ca")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "/nowhere.yaml"),
        ("serve", "/nowhere.yaml"),
        ("router", "--config", "/nowhere.yaml"),
        ("router", "eval", "--data", "/nowhere.jsonl"),
        ("router", "tune", "--from", "/nowhere.jsonl"),
        ("generate", "x", "--body", "/nowhere.txt"),
        ("jobs", "submit", "x", "--body", "/nowhere.txt"),
        ("bench", "kv", "--trace", "/nowhere.jsonl"),
    ],
)
def test_missing_file_is_named(arguments: tuple[str, ...], capsys: Captured) -> None:
    assert main(list(arguments)) == 2
    output = capsys.readouterr()
    (line,) = (output.err + output.out).splitlines()
    assert "/nowhere." in line and "Traceback" not in line and "Errno" not in line


def test_reading_a_terminal_prints_a_hint() -> None:
    with scripted() as script, in_terminal("generate", "--address", script.address) as terminal:
        terminal.expect("Reading standard input; end it with Ctrl-D.")
        terminal.type("why?\n\x04")
        terminal.expect("one two three")
        assert terminal.status() == 0
        assert script.calls[0].request.prompt == "why?\n"


def test_the_exit_statuses_are_in_the_help(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = " ".join(capsys.readouterr().out.split())
    for documented_status in ("0 on success", "2 when", "3 when", "4 when", "5 when", "130 after", "141 when"):
        assert documented_status in output
    assert all(command.name in output for command in root().commands)
