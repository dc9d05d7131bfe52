"""The operator's commands: output, requests and exit status."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from octet.cli import main
from octet.rpc.refusal import invalid_field
from octet.v1 import operator_pb2 as wire
from tests.octet.client.server import scripted
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.router.operator.fake_control import NOW_MS, FakeComparisons
from tests.router.operator.harness import OperatorHarness, running_operator

ROOT = Path(__file__).parents[4]
Captured = pytest.CaptureFixture[str]
LISTS = (("breakers",), ("knobs",), ("lanes",), ("adapters",), ("replicas",), ("shadow", "report"), ("audit",))
CHANGES = (
    ("breaker", "hold", "stl", "--open", "--reason", "r"),
    ("breaker", "release", "stl"),
    ("knobs", "set", "review.priority_floor=5"),
    ("knobs", "release", "review.priority_floor"),
    ("adapters", "load", "stl", "my-lora"),
    ("adapters", "promote", "stl", "my-lora"),
    ("adapters", "rollback", "stl"),
    ("drain", "stl"),
    ("undrain", "stl"),
)


def octet(at: OperatorHarness, *arguments: str) -> int:
    return main([*arguments, "--address", at.address])


def test_breakers_show_holds_and_outlook(capsys: Captured) -> None:
    with running_operator() as at:
        assert octet(at, "breaker", "hold", "template", "--open", "--reason", "bad refresh", "--as", "ann") == 0
        assert capsys.readouterr().out == "template is held open by ann: bad refresh: sound\n"
        assert octet(at, "breakers") == 0
        lines = capsys.readouterr().out.splitlines()
        columns = "specialist +lane +state +passed +samples +floor +judged by +since +fallback +outlook"
        assert re.fullmatch(columns, lines[0])
        assert re.fullmatch(r"stl +1 +closed +97\.0% +120 +90\.0% +cpp +\d+ d +debug +sound", lines[1])
        assert re.search(r"^template +1 +held open by ann: bad refresh +97\.0%", lines[2])
        assert lines[-1] == "passed: over the last 24 h"
        at.control.store_trouble = "the disk is full"
        assert octet(at, "breakers") == 0
        assert "The store is unavailable, so changes are impossible: the disk is full" in capsys.readouterr().out
        assert octet(at, "breaker", "release", "template") == 3
        assert capsys.readouterr().err.startswith("octet breaker release: it could not be stored")


def test_knobs_are_listed_set_and_released(capsys: Captured) -> None:
    with running_operator() as at:
        assert octet(at, "knobs", "set", "review.priority_floor=5", "--reason", "storm", "--as", "ann") == 0
        assert capsys.readouterr().out == "review.priority_floor is 5, set by ann (configured: 0)\n"
        assert octet(at, "knobs") == 0
        out = capsys.readouterr().out
        assert re.search(r"^review\.priority_floor +5 +0 +ann +\d+ d +storm$", out, re.MULTILINE)
        assert re.search(r"^review\.shadow_threshold +0\.5 +0\.5 +configuration +- +-$", out, re.MULTILINE)
        assert octet(at, "knobs", "release", "review.priority_floor") == 0
        assert capsys.readouterr().out == "review.priority_floor is 0, set by configuration (configured: 0)\n"


def test_an_adapter_is_loaded_promoted_and_rolled_back(capsys: Captured) -> None:
    with running_operator() as at:
        assert octet(at, "adapters", "load", "debug", "my-lora") == 0
        assert capsys.readouterr().out == "lane 2 of debug, my-lora, is candidate\n"
        assert octet(at, "adapters", "promote", "debug") == 0
        assert octet(at, "lanes", "debug") == 0
        out = capsys.readouterr().out
        assert re.search(r"^debug +2 +my-lora +serving", out, re.MULTILINE)
        assert re.search(r"^debug +1 +- +previous", out, re.MULTILINE)
        assert octet(at, "adapters", "rollback", "debug") == 0
        assert capsys.readouterr().out == "lane 1 of debug, the bare model, is serving\n"
        for option in ("--limit", "--most"):
            assert octet(at, "audit", "debug", option, "2") == 0
            assert [line.split()[4] for line in capsys.readouterr().out.splitlines()[1:]] == ["roll_back", "promote"]


def test_local_adapter_path_is_resolved_and_others_are_not(tmp_path: Path, capsys: Captured) -> None:
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        from octet.cli.operate import resolve_adapter_path

        assert resolve_adapter_path("./my-lora") == str(tmp_path.resolve() / "my-lora")
        assert resolve_adapter_path("../x") == str(tmp_path.resolve().parent / "x")
        assert resolve_adapter_path("~/x") == str(Path("~/x").expanduser().resolve())
        assert [resolve_adapter_path(path) for path in ("my-lora", "a/b", "/srv/a")] == ["my-lora", "a/b", "/srv/a"]
    finally:
        os.chdir(here)


def test_replicas_are_drained_and_undrained(capsys: Captured) -> None:
    with running_operator() as at:
        assert octet(at, "drain", "template-0", "--reason", "new kernel") == 0
        assert capsys.readouterr().out == "template-0 is drained by operator: 2 running, 0 waiting\n"
        assert octet(at, "replicas") == 0
        out = capsys.readouterr().out
        assert re.search(
            r"^template-0 +template +drained_by_operator +closed +0 +2 +0 +0\.25 s +- +0 +unix:", out, re.M
        )
        assert octet(at, "undrain", "template-0") == 0
        assert at.control.entries[0].why == "new kernel" and at.control.entries[1].why == "by hand"
        assert "@" in at.control.entries[1].who


def test_process_name_of_serve_hints_at_the_replica_name(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process `template/1` of `octet serve` is replica `template-0`."""
    monkeypatch.setattr("tests.router.operator.fake_control.REPLICAS", ("stl-0", "template-0", "template-1"))
    with running_operator() as at:
        for verb in ("drain", "undrain"):
            assert octet(at, verb, "template/1") == 2
            expected = "process template/1 of octet serve is replica template-0"
            assert capsys.readouterr().err == f"octet {verb}: there is no replica 'template/1': {expected}\n"
        assert octet(at, "drain", "template/3") == 2
        assert "to see them, run: octet replicas" in capsys.readouterr().err
        assert octet(at, "drain", "stl") == 2
        assert "did you mean stl-0?" in capsys.readouterr().err
        assert at.control.entries == []


def test_refused_path_explains_the_adapter_root(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> wire.LaneInfo:
        raise invalid_field("path", limits.pop(), "'/x'")

    limits = ["1 to 1024 printable characters", "a directory below the adapter root"]
    with running_operator() as at:
        monkeypatch.setattr(at.control, "load_adapter", refuse)
        assert octet(at, "adapters", "load", "stl", "/x") == 2
        assert capsys.readouterr().err.endswith(
            "; the adapter root is adapter_root in the configuration; its default is the folder of the configuration "
            "file or, without a file, the folder in which octet serve was started\n"
        )
        assert octet(at, "adapters", "load", "stl", "/x") == 2
        assert "root" not in capsys.readouterr().err


KILLED_SERVER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc
class Slow(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda *_: print("asked", flush=True) or time.sleep(60))
server = grpc.server(ThreadPoolExecutor(1), [Slow()])
server.add_insecure_port(sys.argv[1])
server.start()
print("ready", flush=True)
time.sleep(60)
"""


def test_router_killed_during_a_call_is_not_mistaken_for_tls(capsys: Captured) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", KILLED_SERVER, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as router:
        assert router.stdout is not None and router.stdout.readline() == "ready\n"

        def kill() -> None:
            assert router.stdout is not None and router.stdout.readline() == "asked\n"
            router.kill()

        killing = Thread(target=kill)
        killing.start()
        assert main(["knobs", "set", "review.priority_floor=1", "--address", address]) == 3
        killing.join(PATIENCE)
    output = capsys.readouterr().err
    assert output.startswith(
        f"octet knobs set: nothing listens at {address} any more: the server stopped during the call; "
    )
    assert "TLS" not in output and "it is unknown whether the change was made" in output


def test_the_shadow_report(capsys: Captured) -> None:
    outcome: dict[str, Any] = {
        "primary_outcome": "failed",
        "shadow_outcome": "passed",
        "why": "low_confidence",
        "similarity": 0.5,
    }
    kept = [wire.Comparison(intent="review", primary="stl", shadow="debug", at_unix_ms=NOW_MS, **outcome)] * 3
    with running_operator(FakeComparisons(kept)) as at:
        assert octet(at, "shadow", "report", "--last", "24h") == 0
        out = capsys.readouterr().out
        assert re.search(r"^review +stl +debug +low_confidence +3 +0% +0\.50 +3 +0% / 100% +0 / 3$", out, re.MULTILINE)
        assert "9 ordered, 8 sent, 6 answered, 1 shed, 1 failed, 5 compared" in out
        assert "  shed, no_budget: 1\n  failed, timed_out: 1" in out
        at.rows.comparisons_kept.clear()
        assert octet(at, "shadow", "report") == 0
        assert capsys.readouterr().out.startswith("nothing compared yet")


def test_empty_audit(capsys: Captured) -> None:
    with running_operator() as at:
        assert octet(at, "audit") == octet(at, "audit", "debug") == 0
    assert capsys.readouterr().out == "no audit entries\nno audit entries about 'debug'\n"


@pytest.mark.parametrize("command", [*LISTS, *CHANGES], ids=" ".join)
def test_json_is_one_complete_object(command: tuple[str, ...], capsys: Captured) -> None:
    with running_operator() as at:
        for change in CHANGES[: CHANGES.index(command)] if command in CHANGES else ():
            assert octet(at, *change) == 0
        capsys.readouterr()
        assert octet(at, *command, "--json") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)
        if command in CHANGES:
            assert len(at.control.entries) == 1 + CHANGES.index(command)


@pytest.mark.parametrize("command", [*LISTS, *CHANGES, ("events",)], ids=" ".join)
def test_unreachable_router_is_one_line_with_advice(command: tuple[str, ...], capsys: Captured) -> None:
    verbs = {"breaker": 2, "shadow": 2, "knobs": 2, "adapters": 2}
    name = " ".join(command[: min(len(command), verbs.get(command[0], 1))])
    assert main([*command, "--address", "127.0.0.1:1"]) == 3
    assert capsys.readouterr().err == f"octet {name}: nothing answers at 127.0.0.1:1; start it with: octet serve\n"
    with scripted() as script:
        assert main([*command, "--address", script.address]) == 2
    assert "has no octet.v1.Operator" in capsys.readouterr().err


def test_options_before_the_verb_count(capsys: Captured) -> None:
    with running_operator() as at:
        assert main(["knobs", "--address", at.address, "--json", "set", "review.priority_floor=3"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == 3
        assert main(["adapters", "--address", at.address, "load", "stl", "x", "--timeout", "60"]) == 0


def test_a_typo_is_one_line_with_a_suggestion(capsys: Captured) -> None:
    with running_operator() as at:
        assert octet(at, "breaker", "hold", "templat", "--closed", "--reason", "x") == 2
    output = capsys.readouterr().err
    assert output == (
        "octet breaker hold: specialist: there is no 'templat'; it must be one of stl, template, debug; "
        "did you mean template?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("breaker", "hold", "stl", "--reason", "x"), "one of the arguments --open --closed is required"),
        (("breaker", "hold", "stl", "--open", "--closed", "--reason", "x"), "not allowed with argument"),
        (("breaker", "hold", "stl", "--open"), "required: --reason"),
        (("breaker",), "required: hold|release"),
        (("knobs", "set", "review.priority_floor"), "such as review.priority_floor=5), got 'review.priority_floor'"),
        (("knobs", "set", "x=nan"), "got 'x=nan'"),
        (("knobs", "turn", "x"), "choose from"),
        (("shadow", "report", "--last", "yesterday"), "24h, 90m, 7d or 3600s), got 'yesterday'"),
        (("audit", "--limit", "0"), "at least 1, got '0'"),
        (("drain",), "required: REPLICA"),
        (("breakers", "--timeout", "-1"), "expected a positive number of seconds"),
    ],
)
def test_missing_arguments_are_reported(arguments: tuple[str, ...], says: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and says in capsys.readouterr().err


def test_events_are_printed_until_the_timeout(capsys: Captured) -> None:
    with running_operator() as at:
        expected = [
            wire.OperatorEvent(
                at_unix_ms=NOW_MS, audit=wire.AuditEntry(who="ann", what="drain", subject="stl", why="x")
            ),
            wire.OperatorEvent(at_unix_ms=NOW_MS, store_trouble="gone"),
            wire.OperatorEvent(at_unix_ms=NOW_MS, store_trouble=""),
            wire.OperatorEvent(at_unix_ms=NOW_MS, dropped=7),
        ]
        subscribe = at.control.events.subscribe

        @contextmanager
        def subscribe_and_publish() -> Iterator[Any]:
            with subscribe() as events:
                for event in expected:
                    at.control.events.publish(event)
                yield events

        at.control.events.subscribe = subscribe_and_publish  # type: ignore[method-assign]
        assert octet(at, "events", "--timeout", "3") == 0
        words = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
        assert words == [
            "ann: drain stl (x)",
            "the store is unavailable, so changes are impossible: gone",
            "the store is available",
            "7 events were dropped: this client reads too slowly",
        ]
        assert octet(at, "events", "--timeout", "3", "--json") == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert events[-1] == {"at_unix_ms": NOW_MS, "dropped": 7}


def test_ctrl_c_ends_events_and_frees_the_subscription() -> None:
    with running_operator() as at:
        command = [sys.executable, "-m", "octet.cli", "events", "--address", at.address]
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        at.until(lambda: len(at.control.events) == 1)
        event = wire.OperatorEvent(at_unix_ms=NOW_MS, dropped=1)
        at.loop.call_soon_threadsafe(at.control.events.publish, event)
        assert running.stdout is not None and running.stdout.readline().endswith("reads too slowly\n")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, out, err) == (130, "", "")
        at.until(lambda: len(at.control.events) == 0)


def test_operator_commands_load_no_serving_packages() -> None:
    script = (
        "import sys; from octet.cli import main; main(['knobs', '--address', '127.0.0.1:1']); "
        "rooms = {'router', 'admission', 'specialist', 'kvpool', 'bench', 'torch', 'numpy', 'yaml'}; "
        "sys.exit(len(rooms & {name.partition('.')[0] for name in sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
