"""What goes wrong is one line that says what to do, and an exit status that says what kind it was."""

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

from octet.arguments import check_address
from octet.cli import main
from tests.octet.chat.terminal import ROOT, in_terminal
from tests.octet.commands.tree import root
from tests.octet.sdk.server import scripted
from tests.octet.sdk.test_unreachable import speaking_tls
from tests.service.test_tls import pki

__all__ = ["pki"]
Captured = pytest.CaptureFixture[str]
PIPE_CLOSED = 141


def told(capsys: Captured) -> str:
    """The one line."""
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == ""
    return str(line)


@pytest.mark.parametrize("arguments", [("check",), ("completion", "bash"), ("generate", "--help")])
def test_a_reader_that_is_gone_ends_it_quietly(arguments: tuple[str, ...]) -> None:
    """As in `octet check | head -1`, where head is the quicker one."""
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
def test_a_disk_that_is_full_is_told(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "octet.cli", "check"]
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (ended.returncode, ended.stderr) == (2, "octet: standard output: No space left on device\n")


_BARE = """
import sys
for name in ("numpy", "torch", "yaml", "llguidance", "uvloop", "starlette", "tokenizers", "jinja2", "safetensors"):
    sys.modules[name] = None
from octet.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A caller's installation, which has none of them."""


def bare(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", _BARE, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "extra"), [("serve", "serve"), ("router --port 1", "router"), ("specialist --engine sim", "serve")]
)
def test_what_is_not_installed_says_how_to_get_it(command: str, extra: str) -> None:
    """Before its options are known, or when it is to begin."""
    ended = bare(*command.split())
    assert ended.returncode == 2
    name = command.split()[0]
    assert re.fullmatch(
        rf"octet {name}: \w+ is not installed; get it with: pip install 'octet\[{extra}\]'\n", ended.stderr
    )


def test_a_caller_has_the_whole_help() -> None:
    ended = bare("--help")
    said = " ".join(ended.stdout.split())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "router not installed: pip install 'octet[router]'" in said and "completion a script" in said


@pytest.mark.parametrize(
    "address", ["", "localhost", "50051", "http://127.0.0.1:8051", "https://x:1", "x:0", "x:99999", "a b:1", ":1"]
)
def test_an_address_that_is_none_is_told_before_anything_is_looked_up(address: str, capsys: Captured) -> None:
    for command in (("generate", "x"), ("knobs",), ("jobs", "list"), ("route", "x")):
        assert main([*command, f"--address={address}"]) == 2
        line = told(capsys)
        assert line.startswith(
            f"octet {' '.join(command).removesuffix(' x')}: --address is HOST:PORT, such as 127.0.0.1:50051"
        )
        assert repr(address) in line and ("no http:// before it" in line) == ("://" in address)


@pytest.mark.parametrize("address", ["localhost:50051", "[::1]:1", "unix:/tmp/x", "dns:///name:1", "10.0.0.1:65535"])
def test_an_address_may_be_any_that_grpc_knows(address: str) -> None:
    check_address(address)


def test_http_where_grpc_is_asked_for(capsys: Captured) -> None:
    """The other port of the same router, as a rule."""
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
    assert told(capsys) == (
        f"octet route: nothing answers at 127.0.0.1:{port}: HTTP is spoken there, and not gRPC, "
        "which has a port of its own"
    )


def test_tls_where_there_is_none_and_none_where_there_is(pki: Path, tmp_path: Path, capsys: Captured) -> None:
    ask = ("route", "x", "--timeout", "5", "--address")
    with scripted() as script:
        assert main([*ask, script.address, "--tls-ca", str(pki / "ca.pem")]) == 3
        assert "speaks none; leave --tls-ca away, or start it with TLS" in told(capsys)
        no_certificate = tmp_path / "notes.txt"
        no_certificate.write_text("nothing")
        assert main([*ask, script.address, "--tls-ca", str(no_certificate)]) == 3
        assert "--tls-ca must be a PEM file of certificates" in told(capsys)
        assert main([*ask, script.address, "--tls-ca", str(tmp_path / "nowhere.pem")]) == 2
        assert told(capsys) == f"octet route: {tmp_path}/nowhere.pem: No such file or directory"
    with speaking_tls(pki) as port:
        assert main([*ask, f"127.0.0.1:{port}"]) == 3
        assert told(capsys).endswith("if it speaks TLS, name its CA: --tls-ca")


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
def test_a_file_that_is_not_there_is_named(arguments: tuple[str, ...], capsys: Captured) -> None:
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    (line,) = (said.err + said.out).splitlines()
    assert "/nowhere." in line and "Traceback" not in line and "Errno" not in line


def test_who_waits_for_a_prompt_says_so() -> None:
    with scripted() as script, in_terminal("generate", "--address", script.address) as terminal:
        terminal.expect("reading standard input: type, and end with Ctrl-D")
        terminal.type("why?\n\x04")
        terminal.expect("one two three")
        assert terminal.status() == 0
        assert script.calls[0].request.prompt == "why?\n"


def test_the_exit_statuses_are_in_the_help(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for told_status in ("0 when all went well", "2 when", "3 when", "4 when", "5 when", "130 after", "141 when"):
        assert told_status in said
    assert all(command.name in said for command in root().commands)
