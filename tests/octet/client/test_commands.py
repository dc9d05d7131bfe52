"""Output and exit status of `octet generate`, `route`, `receipt` and `cancel`."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet.cli.receipts import explain_decision, format_receipt
from octet.client.receipts import Receipt
from octet.v1 import inference_pb2 as wire
from tests.octet.client.commands import octet
from tests.octet.client.server import ScriptedCall, busy, refuse, scripted
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]
Captured = pytest.CaptureFixture[str]
LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
NO_SPECIALIST = refuse(grpc.StatusCode.FAILED_PRECONDITION, wire.ERROR_REASON_NO_SPECIALIST)


def ask(command: str, *arguments: str, acts: Sequence[ScriptedCall] = ()) -> tuple[int, list[Any]]:
    """Return the exit status and the messages that the router received."""
    with scripted(*acts) as script:
        status = octet(command, *arguments, "--address", script.address)
    return status, [call.request for call in script.calls]


def test_generate_prints_the_answer_and_then_the_receipt(capsys: Captured) -> None:
    assert ask("generate", "why?")[0] == 0
    plain = capsys.readouterr()
    assert (plain.out, plain.err) == ("one two three\n", "")
    assert ask("generate", "why?", "--verbose")[0] == 0
    verbose = capsys.readouterr()
    assert verbose.out == plain.out
    for output in (
        r"answered by +stl on stl-0, revision bbbbbbbbbbbb \+ dddddddddddd",
        r"why +the classifier is sure",
        r"decided by +classifier cccccccccccc\n",
        r"distribution +stl +81\.0% #{19}\n +template +19\.0% #{5}\n",
        r"second choice +template",
        r"admission +2 ahead in the queue, at most 64 tokens, seed 1",
        r"timings +decided 0\.4 ms, first chunk 20\.0 ms, total 1\.50 s",
        r"tokens +7 prompt \(0 cached\), 3 generated, 20\.0 tok/s, stop",
        r"note +rule cmake matched",
        r"request +[0-9a-f]{32}\n",
    ):
        assert re.search(output, verbose.err), output


def test_every_option_reaches_the_router(tmp_path: Path) -> None:
    body = tmp_path / "CMakeLists.txt"
    body.write_text("project(x)")
    options = (
        *("--intent", "build-fix", "--force", "stl", "--force", "build", "--exclude", "debug"),
        *("--template", "{prompt}: {body}", "--body", str(body), "--session", "s", "--user", "u", "--adapter", "a"),
        *("--priority", "7", "--timeout", "20", "--request-id", "mine", "--max-experts", "2", "--stop", "END"),
        *("--temperature", "0.5", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.1", "--typical-p", "0.7"),
        *("--repetition-penalty", "1.1", "--presence-penalty", "0.2", "--frequency-penalty", "0.3", "--ignore-eos"),
        *("--seed", "3", "--max-tokens", "64", "--min-tokens", "2", "--context-size", "512", "--validate"),
        *("--draft-window", "4"),
    )
    status, (request,) = ask("generate", "fix", *options)
    assert status == 0 and 10_000 < request.timeout_ms <= 20_000
    request.ClearField("timeout_ms")
    assert request == wire.InferRequest(
        request_id="mine",
        prompt="fix",
        template="{prompt}: {body}",
        body="project(x)",
        intent="build-fix",
        force_specialists=["stl", "build"],
        exclude_specialists=["debug"],
        adapters=["a"],
        max_experts=2,
        sampling=wire.Sampling(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            typical_p=0.7,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=0.3,
        ),
        seed=3,
        max_tokens=64,
        min_tokens=2,
        stop=["END"],
        ignore_eos=True,
        context_size=512,
        draft_window=4,
        priority=7,
        session_id="s",
        user_id="u",
        validate=True,
        wait_ms=0,  # the client would use a ticket
    )


def test_structure_options_reach_the_router(tmp_path: Path, capsys: Captured) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    for options, structure in (
        (("--json-object",), wire.Structure(json_object=True)),
        (("--json-schema", str(schema)), wire.Structure(json_schema='{"type": "object"}')),
        (("--regex", "a+"), wire.Structure(regex="a+")),
        (("--choice", "yes", "--choice", "no"), wire.Structure(choice=wire.Choices(choices=["yes", "no"]))),
    ):
        status, (request,) = ask("generate", "so?", *options)
        assert status == 0 and request.structure == structure
    schema.write_text("[")
    assert ask("generate", "so?", "--json-schema", str(schema)) == (2, [])
    assert "not valid JSON" in capsys.readouterr().err
    assert octet("generate", "so?", "--json-object", "--regex", "a") == 2
    assert "--json-object and --regex cannot be combined" in capsys.readouterr().err


def test_prompt_is_read_from_stdin_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from outside"))
    assert ask("generate")[1][0].prompt == "from outside"
    monkeypatch.setattr("sys.stdin", io.StringIO("a document"))
    (request,) = ask("generate", "what is this?", "--body", "-")[1]
    assert (request.prompt, request.body) == ("what is this?", "a document")
    (request,) = ask("generate", "hello", "--system", "be brief")[1]
    assert [(each.role, each.content) for each in request.messages] == [("system", "be brief"), ("user", "hello")]
    assert request.prompt == ""


def test_json_output_is_one_event_per_line(capsys: Captured) -> None:
    assert ask("generate", "why?", "--json")[0] == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [next(iter(event)) for event in events] == ["routed", "chunk", "chunk", "chunk", "receipt"]
    assert "".join(event["chunk"]["text"] for event in events[1:-1]) == "one two three"
    assert events[-1]["receipt"]["decision"]["confidence"] == 0.81


@pytest.mark.parametrize(
    ("act", "status", "says"),
    [
        (refuse(grpc.StatusCode.INVALID_ARGUMENT, wire.ERROR_REASON_INVALID_FIELD), 2, "no"),
        (refuse(grpc.StatusCode.NOT_FOUND, wire.ERROR_REASON_UNKNOWN_SPECIALIST), 2, "no"),
        (refuse(grpc.StatusCode.UNIMPLEMENTED), 2, "--replica"),
        (busy(3_600_000), 3, "no; try again in 3600.0 s"),
        (refuse(grpc.StatusCode.INTERNAL, wire.ERROR_REASON_ENGINE_FAILED), 4, "no"),
        (refuse(grpc.StatusCode.DEADLINE_EXCEEDED, wire.ERROR_REASON_DEADLINE), 4, "no"),
        (refuse(grpc.StatusCode.CANCELLED, wire.ERROR_REASON_CANCELLED), 4, "no"),
        (NO_SPECIALIST, 5, "force a specialist by name"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "route", "receipt", "cancel"])
def test_errors_have_an_exit_status_and_one_line(
    capsys: Captured, command: str, act: ScriptedCall, status: int, says: str
) -> None:
    assert ask(command, "x", acts=[act])[0] == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"octet {command}: ") and says in line


@pytest.mark.parametrize("command", ["generate", "route", "receipt", "cancel"])
def test_unreachable_router_error_says_how_to_start_it(capsys: Captured, command: str) -> None:
    assert octet(command, "x", "--address", "127.0.0.1:1") == 3
    assert capsys.readouterr().err == (f"octet {command}: nothing answers at 127.0.0.1:1; start it with: octet serve\n")


def test_a_router_is_not_taken_for_a_replica(capsys: Captured) -> None:
    with scripted() as script:
        assert octet("generate", "x", "--replica", script.address) == 2
    assert capsys.readouterr().err == (
        f"octet generate: the server at {script.address} is not a replica; "
        "for a router, use --address instead of --replica\n"
    )


def test_cut_off_answer_shows_its_part_and_its_receipt(capsys: Captured) -> None:
    cut = ScriptedCall(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
    assert ask("generate", "x", "--verbose", acts=[cut])[0] == 4
    output = capsys.readouterr()
    assert output.out == "one two three\n"
    assert re.search(r"error +replica_lost: the replica was lost\n", output.err)
    assert output.err.splitlines()[-1].startswith(
        "octet generate: the replica was lost; the part that was received is valid"
    )
    assert ask("generate", "x", "--json", acts=[cut])[0] == 4
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["receipt"]["error"]["reason"] == "replica_lost"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x", "--raw"], "--raw needs --replica"),
        (["x", "--raw", "--system", "y", "--replica", "z"], "--raw leaves out"),
        (["x", "--replica", "z", "--intent", "y"], "--intent is for the router"),
        (["x", "--replica", "z", "--max-experts", "1"], "--max-experts is for the router"),
        (["x", "--replica", "z", "--force", "y"], "--force is for the router"),
        (["x", "--replica", "z", "--validate"], "--validate is for the router"),
        (["x", "--system", "y", "--body", "f"], "neither --template nor --body"),
        (["--body", "-"], "give the prompt as an argument"),
    ],
)
def test_conflicting_options_are_refused(capsys: Captured, arguments: list[str], says: str) -> None:
    assert octet("generate", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octet generate: ") and says in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["\udcff"], "prompt must be valid UTF-8"),
        (["x", "--intent", "\udcff"], "intent must be valid UTF-8"),
        (["x", "--seed", str(2**70)], "--seed must be in"),
        (["x", "--timeout", "nan"], "timeout must be a number of seconds"),
        (["x", "--body", "/nowhere"], "/nowhere"),
        (["x", "--tls-key", "k"], "must be given together"),
    ],
)
def test_unsendable_values_are_reported_in_one_line(capsys: Captured, arguments: list[str], says: str) -> None:
    assert octet("generate", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octet generate: ") and says in line


def test_route_prints_one_line_or_all_details(capsys: Captured) -> None:
    assert ask("route", "undefined reference to vtable")[0] == 0
    assert capsys.readouterr().out == "stl  0.81  classifier\n"
    status, (request,) = ask("route", "undefined reference", "--explain", "--intent", "link", "--exclude", "debug")
    assert (status, request.intent, list(request.exclude_specialists)) == (0, "link", ["debug"])
    out = capsys.readouterr().out
    assert out.startswith("stl  0.81  classifier\nwhy            the classifier is sure\n")
    for output in (
        r"decided by +classifier c{12}\n",
        "second choice +template",
        "task +explain, at most 64",
        "note +rule",
    ):
        assert re.search(output, out), output
    assert "digests        request aaaaaaaaaaaa, classifier cccccccccccc" in out
    assert ask("route", "x", "--json")[0] == 0
    assert json.loads(capsys.readouterr().out)["decision"]["second_choice"] == "template"


def test_route_without_a_specialist_shows_the_candidates(capsys: Captured) -> None:
    assert ask("route", "x", "--explain", acts=[NO_SPECIALIST])[0] == 5
    output = capsys.readouterr()
    assert "distribution" in output.out and len(output.err.splitlines()) == 1
    assert ask("route", "x", acts=[ScriptedCall(has_no_specialist=True)])[0] == 5
    assert capsys.readouterr() == (
        "no specialist  -  reject\n",
        "octet route: no specialist should answer this: this is not about C++\n",
    )


def test_reject_names_the_classifier() -> None:
    digest = "c" * 64
    decision = wire.Decision(decided_by=digest, classifier_digest=digest, why="reject is the likeliest")
    receipt = Receipt.from_wire(wire.Receipt(decision=decision))
    assert re.search(r"decided by +classifier c{12}\n", explain_decision(receipt))


def test_validation_is_shown_with_the_receipt() -> None:
    validation = wire.Validation(verifier="cpp", outcome="failed", detail="error: expected ';'", seconds=0.25)
    receipt = Receipt.from_wire(wire.Receipt(validation=validation))
    assert "validation     failed by cpp after 250.0 ms: error: expected ';'" in format_receipt(receipt).splitlines()


def test_a_receipt_can_be_looked_up_and_a_request_cancelled(capsys: Captured) -> None:
    status, (request,) = ask("receipt", "mine")
    assert (status, request) == (0, wire.GetReceiptRequest(request_id="mine"))
    assert re.search(r"request +mine\n", capsys.readouterr().out)
    assert ask("receipt", "mine", "--json")[0] == 0
    assert json.loads(capsys.readouterr().out)["request_id"] == "mine"
    status, (request,) = ask("cancel", "mine")
    assert (status, request) == (0, wire.CancelRequest(request_id="mine"))
    assert capsys.readouterr() == ("", "")
    assert ask("cancel", "mine", "--json")[0] == 0
    assert json.loads(capsys.readouterr().out) == {"request_id": "mine", "cancelled": True}


def process(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.octet.client.commands", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rest(running: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait until the command ends. Return its exit status and its stderr."""
    if running.stdout is None or running.stderr is None:
        raise RuntimeError("no pipes")
    output = running.stderr.read()
    status = running.wait(PATIENCE)
    running.stderr.close()
    running.stdout.close()
    return status, output


def test_closed_stdout_ends_the_command_quietly() -> None:
    """The pipe is closed early, as by `octet generate ... | head -1`."""
    with scripted(ScriptedCall(words=tuple(f"{number}\n" for number in range(200_000)))) as script:
        running = process("generate", "x", "--address", script.address)
        if running.stdout is None:
            raise RuntimeError("no pipe")
        assert running.stdout.readline() == "0\n"
        running.stdout.close()
        assert rest(running) == (141, "")
        assert script.calls[0].ended.wait(PATIENCE)


def test_an_interrupt_cancels() -> None:
    with scripted(ScriptedCall(words=("begun\n",), hangs=True)) as script:
        running = process("generate", "x", "--address", script.address)
        if running.stdout is None:
            raise RuntimeError("no pipe")
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        assert rest(running) == (130, "")
        assert script.calls[0].ended.wait(PATIENCE)


def test_router_lost_during_an_answer_is_one_line() -> None:
    with scripted(ScriptedCall(words=("begun\n",), hangs=True)) as script:
        running = process("generate", "x", "--address", script.address)
        if running.stdout is None:
            raise RuntimeError("no pipe")
        assert running.stdout.readline() == "begun\n"
        script.stop()
        status, output = rest(running)
    assert status == 4, "a retry would repeat the beginning of the answer"
    assert (
        "the router at" in output
        and "was lost in the middle of the answer; the part that was received is valid" in output
    )
    assert len(output.splitlines()) == 1
