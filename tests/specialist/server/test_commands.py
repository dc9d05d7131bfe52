"""Output and exit status of `octet generate --replica` and `octet specialist`, called as functions."""

import argparse
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import fields

import pytest

from octet.cli.requests import add_generate_command
from octet.cli.specialist import add_specialist_command
from specialist.server.settings import ReplicaSettings
from tests.specialist.server.background import Background, in_background


@pytest.fixture(scope="module")
def background() -> Iterator[Background]:
    with in_background() as background:
        yield background


def octet(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="octet")
    commands = parser.add_subparsers(required=True)
    add_generate_command(commands)
    add_specialist_command(commands)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


def test_every_replica_setting_has_an_option() -> None:
    not_settable: set[str] = set()
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_specialist_command(commands)
    options = {action.dest for action in commands.choices["specialist"]._actions}
    renamed = {"adapters": "adapter", "adapter_digests": "adapter_digest"}
    names = {renamed.get(field.name, field.name) for field in fields(ReplicaSettings)}
    assert names - options == not_settable


def generate(background: Background, *arguments: str) -> int:
    return octet("generate", "--replica", background.served.address, *arguments)


def test_generate_streams_text_and_a_receipt(
    background: Background, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    length = ("--max-tokens", "9", "--ignore-eos")
    assert generate(background, "hello", *length) == 0
    plain = capsys.readouterr()
    assert plain.err.startswith("The answer was cut at its length: max_tokens 9;") and plain.err.count("\n") == 1
    assert 2 <= len(plain.out) <= 10 and plain.out.endswith("\n")
    assert generate(background, "hello", *length, "--verbose") == 0
    verbose = capsys.readouterr()
    assert verbose.out == plain.out
    assert all(word in verbose.err for word in ("writer", "9 generated", "tok/s", "cached"))
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert generate(background, *length) == 0
    assert capsys.readouterr().out == plain.out
    assert generate(background, "hello", *length, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [next(iter(event)) for event in events] == ["accepted", *["chunk"] * (len(events) - 2), "usage"]
    assert "".join(event["chunk"].get("text", "") for event in events[1:-1]) == plain.out[:-1]


def test_raw_leaves_the_template_out(background: Background, capsys: pytest.CaptureFixture[str]) -> None:
    def prompt_tokens(*arguments: str) -> int:
        assert generate(background, "hello", "--max-tokens", "1", "--json", *arguments) == 0
        return int(json.loads(capsys.readouterr().out.splitlines()[0])["accepted"]["prompt_tokens"])

    assert prompt_tokens("--raw") == 5
    assert 5 < prompt_tokens() < prompt_tokens("--system", "be brief")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--temperature", "nan"], 2, "sampling.temperature must be 0 or in [0.0001, 100], got nan"),
        (["--adapter", "absent"], 2, "no adapter named 'absent' is loaded"),
        (["--seed", str(2**70)], 2, "--seed must be in [-9223372036854775808, 9223372036854775807], got 118059"),
        (["--top-k", str(-(2**63) - 1)], 2, "--top-k must be in"),
        (["--timeout", "inf"], 2, "--timeout"),
        (["--timeout", "1e300"], 2, "--timeout"),
        (["--stop", "\udcff"], 2, "stop must be valid UTF-8"),
        (["--tls-key", "key.pem"], 2, "must be given together"),
        (["--tls-key", "key.pem", "--tls-certificate", "c.pem"], 2, "requires the server's CA"),
        (["--replica", "127.0.0.1:1"], 3, "start one with: octet specialist"),
    ],
)
def test_error_is_reported_in_one_line(
    background: Background, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, says: str
) -> None:
    assert generate(background, "hello", *arguments) == status
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert said.err.startswith("octet generate: ") and says in said.err


def test_input_that_is_not_utf8_is_reported_in_one_line(
    background: Background, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello \xff"), encoding="utf-8"))
    assert generate(background) == 2
    assert (
        capsys.readouterr().err == "octet generate: standard input must be valid UTF-8: the byte at offset 6 is not\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "--insecure"),  # noqa: S104
        (["--host", "0.0.0.0", "--tls-certificate", "c", "--tls-key", "k"], "--tls-client-ca"),  # noqa: S104
        (["--tls-key", "key.pem"], "must be given together"),
        (["--adapter", "a=/nowhere"], "adapter_config.json"),
        (["--adapter", "a=/one", "--adapter", "b=/two", "--adapter", "a=/three"], "'a' is given more than once"),
        (["--context", "4"], "context must be at least 8 tokens, got 4"),
        (["--kv-blocks", "1", "--block-size", "4"], "the context is 4 tokens and must be at least 8"),
        (["--tls-key", "/nowhere", "--tls-certificate", "/nowhere"], "/nowhere"),
    ],
)
def test_invalid_start_explains_what_to_do(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert octet("specialist", "--engine", "sim", "--port", "0", *arguments) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_taken_port_is_reported_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        pytest.fail("a model is loaded although the port is taken")

    monkeypatch.setattr("specialist.server.replica.assemble_replica", load)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert octet("specialist", "--engine", "sim", "--port", str(taken.getsockname()[1])) == 2
    assert "--port" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "70000"],
        ["--kv-memory", "-1"],
        ["--kv-blocks", "0"],
        ["--adapter", "x"],
        ["--itl-budget", "nan"],
        ["--piece-gap", "1.1"],
        ["--piece-gap=-1"],
        ["--piece-gap", "nan"],
        ["--piece-gap", "soon"],
    ],
)
def test_nonsense_is_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        octet("specialist", *arguments)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--draft-lane"], "--draft-lane has no effect without --draft-window"),
        (["--draft-model", "small"], "--draft-model has no effect without --draft-window"),
        (["--draft-model", "small", "--draft-window", "4"], "the sim engine has no weights"),
    ],
)
def test_drafts_that_cannot_be_are_refused(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert octet("specialist", "--engine", "sim", "--port", "0", *arguments) == 2
    assert why in capsys.readouterr().err
