"""`octet top` in a real terminal: keys, sizes, and a router restart. The terminal is restored afterwards."""

import fcntl
import json
import re
import signal
import struct
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from octet.cli import main
from tests.octet.cli.chat.terminal import CTRL_C, UP, Terminal, in_terminal
from tests.octet.cli.operate.scripted_router import ScriptedRouter, overview, router_served, specialist_view, trouble
from tests.patience import PATIENCE

Captured = pytest.CaptureFixture[str]
DOWN, CTRL_Z = "\x1b[B", "\x1a"
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"
_ORDERS = re.compile(r"\x1b\[(\?1049[hl]|\?25[hl]|\d+;1H|H)")
_BREAKS = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import octet.cli.top as live
whole, drawn = live.render_frame, []
def frame(*arguments):
    drawn.append(1)
    if len(drawn) > 1:
        raise RuntimeError("a mistake of ours")
    return whole(*arguments)
live.render_frame = frame
from octet.cli import main
sys.exit(main(sys.argv[1:]))
"""


def size(terminal: Terminal, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def screen(terminal: Terminal) -> list[str]:
    """Return the last complete screen without colours."""
    drawn = [each for each in terminal.seen.split("\x1b[1;1H")[1:] if "q quit" in each] or [""]
    last = drawn[-1].partition("\x1b[?")[0]
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in re.split(r"\x1b\[\d+;1H", last)]


def until(terminal: Terminal, condition: Callable[[list[str]], bool], what: str) -> list[str]:
    end = time.monotonic() + PATIENCE
    while not condition(screen(terminal)):
        assert time.monotonic() < end, f"{what}: {screen(terminal)}"
        terminal._read(0.05)
    return screen(terminal)


def has(words: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(words in line for line in lines)


def check_restored(terminal: Terminal, before: list[object]) -> None:
    assert terminal.seen.count(ENTER) == terminal.seen.count(LEAVE) >= 1
    assert LEAVE in terminal.seen.rpartition("\x1b[1;1H")[2], "nothing may be drawn after the alternate screen is left"
    assert termios.tcgetattr(terminal._master) == before


def test_keys_resize_and_suspend() -> None:
    with router_served() as router, in_terminal("top", "--address", router.address) as terminal:
        size(terminal, 200, 30)
        before = termios.tcgetattr(terminal._master)
        shown = until(terminal, has("critical: stl refuses requests"), "what is wrong now")
        assert shown[0].startswith("test  octet 9.9  as of ") and shown[-1].startswith("q quit")
        until(terminal, lambda lines: len(lines) == 30, "all of the terminal")
        assert not termios.tcgetattr(terminal._master)[3] & (termios.ECHO | termios.ICANON)
        terminal.type(DOWN + DOWN + UP)
        until(terminal, has("> stl "), "the selection")
        terminal.type("\r")
        until(terminal, has("stl: answers about stl"), "the details")
        size(terminal, 70, 18)
        small = until(terminal, lambda lines: len(lines) == 18, "the new size")
        assert all(len(line) <= 70 for line in small) and has("> stl ")(small)
        terminal.type("?")
        until(terminal, has("from a request's arrival"), "help")
        terminal.type("\x1b")
        until(terminal, lambda lines: not has("from a request's arrival")(lines), "no help")
        terminal.type("s")
        until(terminal, has("by requests"), "the order")
        terminal.type(CTRL_Z)
        terminal.expect(LEAVE)
        terminal.expect(ENTER)
        terminal.type("q")
        assert terminal.status() == 0
        check_restored(terminal, before)


def test_view_survives_a_router_restart() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(router_served())
        port = int(first.address.rpartition(":")[2])
        terminal = stack.enter_context(in_terminal("top", "--address", first.address))
        size(terminal, 120, 24)
        until(terminal, has("critical: stl refuses requests"), "the first router")
        first.server.stop(0).wait(PATIENCE)
        shown = until(terminal, has("STALE"), "that it is gone")
        assert has("s old: reconnecting: ")(shown)
        until(terminal, lambda lines: bool(re.search(r"as of [\d:]{8}, [1-9]\d* s old", lines[0])), "how old it is")
        second = ScriptedRouter()
        second.overviews = [overview(troubles=[])]
        stack.enter_context(router_served(second, port))
        shown = until(terminal, has("no problems"), "the next router")
        assert not has("STALE")(shown) and "old" not in shown[0]
        terminal.type("q")
        assert terminal.status() == 0


def test_ctrl_c_restores_the_terminal_and_hostile_text_is_harmless() -> None:
    hostile = "\x1b]0;gotcha\x07\x9b2J\r\n\u202e"
    router = ScriptedRouter()
    views = [specialist_view(f"s{hostile}", describe=hostile), specialist_view("b")]
    router.overviews = [overview(specialists=views, ensemble=hostile, troubles=[trouble(f"bad {hostile}")])]
    with router_served(router), in_terminal("top", "--address", router.address, env={"NO_COLOR": "1"}) as terminal:
        size(terminal, 160, 24)
        before = termios.tcgetattr(terminal._master)
        until(terminal, has("critical: bad"), "the view")
        terminal.type(DOWN + "\r")
        until(terminal, has("objective ttft_p95"), "the details")
        terminal.press(CTRL_C, until=LEAVE)
        assert terminal.status() == 130
        check_restored(terminal, before)
        rest = _ORDERS.sub("", terminal.seen)
        assert "gotcha" in rest and rest.replace("^C", "").isprintable(), "the output must have no colours"


def test_sigterm_restores_the_terminal() -> None:
    with router_served() as router, in_terminal("top", "--address", router.address) as terminal:
        before = termios.tcgetattr(terminal._master)
        until(terminal, has("critical"), "the view")
        terminal._running.send_signal(signal.SIGTERM)
        assert terminal.status() == -signal.SIGTERM
        check_restored(terminal, before)


def test_exception_restores_the_terminal() -> None:
    with router_served() as router, in_terminal("top", "--address", router.address, program=_BREAKS) as terminal:
        before = termios.tcgetattr(terminal._master)
        terminal.expect("a mistake of ours")
        assert terminal.status() == 1
        check_restored(terminal, before)


def test_output_without_a_terminal_is_text_or_json_once(capsys: Captured) -> None:
    with router_served() as router:
        for asked in (["--once"], []):
            assert main(["top", *asked, "--address", router.address]) == 0
            out = capsys.readouterr().out
            assert "critical: stl refuses requests" in out and re.search(r"^  stl .*my-lora$", out, re.M)
            assert "\x1b" not in out and "q quit" not in out
        assert main(["top", "--json", "--address", router.address]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["specialists"][0]["slo"]["ttft"]["p95"] == pytest.approx(0.2)
        again = ["top", "--json", "--interval", "0.1", "--timeout", "2", "--address", router.address]
        assert main(again) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) > 1 and all(json.loads(line)["ensemble"] == "test" for line in lines)


def test_start_errors_are_one_line(capsys: Captured) -> None:
    with router_served() as router:
        address = router.address
        assert main(["top", "--once", "--interval", "1", "--address", address]) == 2
        assert "cannot be combined" in capsys.readouterr().err
    assert main(["top", "--once", "--address", address, "--timeout", "2"]) == 3
    assert capsys.readouterr().err.startswith("octet top: ")
    with in_terminal("top", "--address", address) as terminal:
        assert terminal.status() == 3
        assert terminal.seen.startswith("octet top: ") and ENTER not in terminal.seen
