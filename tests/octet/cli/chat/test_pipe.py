"""`octet chat` through a pipe: each input line is a turn."""

import io
import json
import signal
import subprocess
import sys
from typing import Any

import grpc
import pytest

from octet.cli import main
from octet.v1 import inference_pb2 as wire
from tests.octet.cli.chat.terminal import ROOT
from tests.octet.client.server import Script, ScriptedCall, refuse, scripted
from tests.patience import PATIENCE

Captured = pytest.CaptureFixture[str]
REFUSED = refuse(grpc.StatusCode.NOT_FOUND, wire.ERROR_REASON_UNKNOWN_SPECIALIST)
LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")


class PipedChat:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def chat(self, text: str, *arguments: str, acts: tuple[ScriptedCall, ...] = ()) -> tuple[int, Script]:
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode(errors="surrogateescape"))))
        with scripted(*acts) as script:
            return main(["chat", "--address", script.address, *arguments]), script


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> PipedChat:
    return PipedChat(monkeypatch)


def sent_texts(script: Script) -> list[list[str]]:
    return [[each.content for each in call.request.messages] for call in script.calls]


def test_each_line_is_a_turn_and_only_answers_are_written(piped: PipedChat, capsys: Captured) -> None:
    status, script = piped.chat(
        "one\n\n  \n/system brief\ntwo", "--force", "stl", "--max-tokens", "9", "--timeout", "5"
    )
    assert status == 0
    assert sent_texts(script) == [["one"], ["brief", "one", "one two three", "two"]]
    first: Any = script.calls[0].request
    assert (list(first.force_specialists), first.max_tokens) == (["stl"], 9)
    shown = capsys.readouterr()
    assert shown.out == "one two three\none two three\n"
    assert shown.err.splitlines()[0].startswith("stl 0.81: the classifier is sure") and "\x1b" not in shown.err


def test_first_failed_turn_ends_the_chat(piped: PipedChat, capsys: Captured) -> None:
    status, script = piped.chat("one\ntwo\nthree\n", acts=(ScriptedCall(), REFUSED))
    assert (status, len(script.calls)) == (2, 2)
    assert capsys.readouterr().err.splitlines()[-1] == "octet chat: no"
    status, script = piped.chat("/nonsense\none\n")
    assert (status, len(script.calls)) == (2, 0)


def test_json_output_is_one_event_per_line_with_its_turn(piped: PipedChat, capsys: Captured) -> None:
    cut = ScriptedCall(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
    status, _ = piped.chat("one\n/why\n/help\ntwo\nthree\n", "--json", acts=(ScriptedCall(), cut))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    turns = [(event.get("turn"), next(key for key in event if key != "turn")) for event in events]
    chunks = ["chunk"] * 3
    assert turns == [
        *((1, name) for name in ("routed", *chunks, "receipt")),
        (None, "why"),
        *((2, name) for name in ("routed", *chunks, "error")),
    ]
    assert events[-1]["error"] == {
        "kind": "ReplicaLost",
        "message": "the replica was lost; the part that was received is valid; send the request again for the rest",
        "reason": "replica_lost",
        "status": 4,
    }
    assert status == 4
    assert "".join(event["chunk"]["text"] for event in events[1:4]) == "one two three"


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("\udcff\n", (), "standard input must be valid UTF-8"),
        ("x" * 2_000_001, (), "at most 2,000,000 bytes"),
        ("x\n", ("--seed", str(2**70)), "--seed must be in"),
        ("x\n", ("--system", "\udcff"), "system must be valid UTF-8"),
        ("x\n", ("--address", "http://127.0.0.1:8051"), "--address must be HOST:PORT"),
    ],
)
def test_invalid_input_is_one_error_line(
    piped: PipedChat, capsys: Captured, text: str, arguments: tuple[str, ...], says: str
) -> None:
    status, script = piped.chat(text, *arguments)
    assert (status, script.calls) == (2, [])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octet chat: ") and says in line


def test_ctrl_c_ends_a_piped_chat() -> None:
    with scripted(ScriptedCall(words=("begun\n",), hangs=True)) as script:
        command = [sys.executable, "-m", "octet.cli", "chat", "--address", script.address]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdin is not None and running.stdout is not None and running.stderr is not None
            running.stdin.write("go\nand on\n")
            running.stdin.flush()
            assert running.stdout.readline() == "begun\n"
            running.send_signal(signal.SIGINT)
            assert (running.wait(PATIENCE), running.stderr.read()) == (130, "")
        assert script.calls[0].ended.wait(PATIENCE) and len(script.calls) == 1
