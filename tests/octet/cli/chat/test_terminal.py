"""`octet chat` in a terminal."""

import json
from pathlib import Path
from typing import Any

import grpc

from octet.v1 import inference_pb2 as wire
from tests.octet.cli.chat.terminal import CTRL_C, CTRL_D, UP, in_terminal
from tests.octet.client.server import Script, ScriptedCall, scripted
from tests.patience import PATIENCE

LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
DIM = "\x1b[2m"


def messages(script: Script, number: int = -1) -> list[tuple[str, str]]:
    request: Any = script.calls[number].request
    return [(each.role, each.content) for each in request.messages]


def test_conversation_with_a_cut_answer_a_failure_and_commands(tmp_path: Path) -> None:
    cut = ScriptedCall(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
    hostile = ScriptedCall(words=("red \x1b[31m",))
    with (
        scripted(ScriptedCall(), ScriptedCall(words=("half ",), hangs=True), cut, hostile, ScriptedCall()) as script,
        in_terminal("chat", "--address", script.address, "--no-history") as terminal,
    ):
        terminal.expect("Ctrl-D exits")
        terminal.expect("> ")
        terminal.type("why?\n")
        terminal.expect("one two three\r\n")
        line = terminal.expect("tok/s")
        assert line.startswith(f"{DIM}stl 0.81: the classifier is sure · 0 of 7 prompt tokens cached · 20.0")
        terminal.expect("> ")

        terminal.type("go on\n")
        terminal.expect("half ")
        terminal.type(CTRL_C)
        terminal.expect("Cut short; the text so far is kept.")
        assert script.calls[1].ended.wait(PATIENCE), "the request must be cancelled as well"
        terminal.expect("> ")
        terminal.type("half a line")
        terminal.expect("half a line")
        terminal.press(CTRL_C, until="(Ctrl-D exits)")

        terminal.type("lost?\n")
        terminal.expect("octet chat: the replica was lost")
        terminal.expect("this turn is not kept")
        terminal.type("and\\\n")
        terminal.expect("… ")
        terminal.type("colours?\n")
        terminal.expect("red �[31m")
        assert messages(script) == [
            ("user", "why?"),
            ("assistant", "one two three"),
            ("user", "go on"),
            ("assistant", "half "),
            ("user", "and\ncolours?"),
        ]

        terminal.type("/specialist stl\n")
        terminal.expect("Only stl may answer.")
        terminal.type("/system be brief\n")
        terminal.expect("System message: be brief")
        terminal.type("/reset\n")
        terminal.expect("Started a new conversation.")
        terminal.type("//usr?\n")
        terminal.expect("one two three")
        terminal.expect("tok/s")
        assert messages(script) == [("system", "be brief"), ("user", "/usr?")]
        request: Any = script.calls[-1].request
        assert list(request.force_specialists) == ["stl"]
        assert request.session_id not in ("", script.calls[0].request.session_id)
        terminal.type("/why\n")
        terminal.expect("second choice  template")
        saved = tmp_path / "talk.json"
        for says in ("Saved 1 turns to", "already: choose another name"):
            terminal.type(f"/save {saved}\n")
            terminal.expect(says)
        terminal.type("/nonsense\n")
        terminal.expect("There is no /nonsense. /help lists")
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.status() == 0
    assert [each["content"] for each in json.loads(saved.read_text())["messages"]] == [
        "be brief",
        "/usr?",
        "one two three",
    ]


def test_history_is_private_and_colours_can_be_disabled(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "NO_COLOR": "1"}
    with scripted() as script:
        for keys in ("remember me\n", UP + UP + "\n"):
            with in_terminal("chat", "--address", script.address, env=env) as terminal:
                terminal.expect("> ")
                terminal.type(keys)
                terminal.expect("tok/s")
                terminal.type("/exit\n")
                assert terminal.status() == 0
                assert DIM not in terminal.seen
        assert [messages(script, number) for number in (0, 1)] == [[("user", "remember me")]] * 2
    history = tmp_path / "octet" / "chat_history"
    assert "remember me" in history.read_text() and history.stat().st_mode & 0o777 == 0o600


def test_chat_goes_on_without_a_router() -> None:
    with in_terminal("chat", "--address", "127.0.0.1:1", "--no-history") as terminal:
        terminal.expect("> ")
        terminal.type("hello\n")
        terminal.expect("octet chat: nothing answers at 127.0.0.1:1; start it with: octet serve")
        terminal.expect("> ")
        assert terminal.is_running
        terminal.type(CTRL_D)
        assert terminal.status() == 0
