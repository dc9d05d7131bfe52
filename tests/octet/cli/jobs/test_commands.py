"""`octet jobs`: requests, output and exit status of each verb."""

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from octet.cli import main
from octet.v1 import error_pb2
from octet.v1 import jobs_pb2 as wire
from tests.octet.cli.chat.terminal import ROOT
from tests.octet.cli.jobs.server import Jobs, done, job, jobs_served
from tests.octet.client.server import scripted
from tests.patience import PATIENCE

Captured = pytest.CaptureFixture[str]
QUEUED, RUNNING = job(wire.JOB_STATUS_QUEUED), job(wire.JOB_STATUS_RUNNING)
FAILED = job(
    wire.JOB_STATUS_FAILED,
    "one",
    partial=True,
    ended_unix_ms=1,
    error=error_pb2.Error(reason=error_pb2.ERROR_REASON_DEADLINE, message="the time given has passed"),
)


def octet(at: Jobs, *arguments: str) -> int:
    return main(["jobs", *arguments, "--address", at.address])


def test_submit_gives_the_id_and_sends_everything(capsys: Captured) -> None:
    options = ("--force", "stl", "--max-tokens", "9", "--timeout", "20", "--regex", "a+", "--session", "s")
    with jobs_served(done()) as at:
        assert octet(at, "submit", "why?", "--idempotency-key", "mine", *options) == 0
        assert capsys.readouterr() == ("job-1\n", "")
        (sent,) = at.calls
        assert sent.idempotency_key == "mine"
        request = sent.request
        assert (request.prompt, list(request.force_specialists), request.max_tokens) == ("why?", ["stl"], 9)
        assert (request.timeout_ms, request.structure.regex, request.session_id) == (20_000, "a+", "s")
        assert octet(at, "submit", "why?", "--json") == 0
        assert json.loads(capsys.readouterr().out)["status"] == "queued"
        assert octet(at, "submit", "x", "--system", "y", "--body", "f") == 2
    assert "neither --template nor --body" in capsys.readouterr().err


def test_job_is_shown_listed_and_cancelled(capsys: Captured) -> None:
    with jobs_served(done()) as at:
        assert octet(at, "get", "job-1") == 0
        output = capsys.readouterr().out
        assert re.search(r"^status +done$", output, re.M) and re.search(r"^specialist +stl$", output, re.M)
        assert output.endswith("\n\none two\n")
        assert octet(at, "list", "--limit", "2", "--before", "job-9") == 0
        assert (at.calls[-1].limit, at.calls[-1].before) == (2, "job-9")
        lines = capsys.readouterr().out.splitlines()
        assert re.match(r"job-1 +done +\S+ \S+ +2 s +1 +-", lines[1]) and "queued" in lines[2]
        assert octet(at, "cancel", "job-1") == 0
        assert capsys.readouterr().out == "job job-1 is cancelled\n"
        for asked in (("get", "x"), ("list",), ("cancel", "x"), ("wait", "x")):
            assert octet(at, *asked, "--json") == 0
            assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_watch_resumes_without_duplicates(capsys: Captured) -> None:
    with jobs_served(QUEUED, RUNNING, "one ", "two", done(), cuts=(1, 3, 3)) as at:
        assert octet(at, "watch", "job-1") == 0
        assert [call.after for call in at.calls] == [0, 1, 3, 3]
        assert capsys.readouterr() == ("one two\n", "queued\nrunning\ndone\n")
        assert octet(at, "watch", "job-1", "--after", "3", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(event["number"], event["event"]) for event in events] == [(4, "chunk"), (5, "status")]
    assert events[0]["chunk"]["text"] == "two" and events[1]["job"]["text"] == "one two"


def test_restarted_job_is_reported(capsys: Captured) -> None:
    with jobs_served(RUNNING, "lost", 2, "one two", done()) as at:
        assert octet(at, "watch", "job-1") == 0
        output = capsys.readouterr()
        assert output.out == "lost\none two\n" and "attempt 2 starts over; discard the text above" in output.err
        assert octet(at, "watch", "job-1", "--json") == 0
    third = json.loads(capsys.readouterr().out.splitlines()[2])
    assert third == {"number": 3, "event": "restarted", "attempt": 2}


@pytest.mark.parametrize("verb", ["watch", "wait"])
def test_failed_job_sets_the_exit_status(verb: str, capsys: Captured) -> None:
    with jobs_served(RUNNING, "one", FAILED) as at:
        assert octet(at, verb, "job-1") == 4
    output = capsys.readouterr()
    assert output.out == "one\n"
    assert output.err.splitlines()[-1] == (
        f"octet jobs {verb}: job job-1 ended as failed: the time given has passed; its partial answer was printed; "
        "for more, run: octet jobs get job-1"
    )


def test_ctrl_c_leaves_the_job_running_and_prints_how_to_resume() -> None:
    with jobs_served(QUEUED, "one") as at:
        command = [sys.executable, "-m", "octet.cli", "jobs", "watch", "job-1", "--address", at.address]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert at.hangs.wait(PATIENCE)
            assert running.stdout is not None and running.stdout.read(3) == "one"
            running.send_signal(signal.SIGINT)
            output: Any = running.communicate(timeout=PATIENCE)[1]
        assert running.returncode == 130
    assert output.splitlines()[-1] == "The job continues. To see the rest: octet jobs watch job-1 --after 2"
    assert not any(isinstance(call, wire.CancelJobRequest) for call in at.calls)


def test_a_router_without_jobs_is_not_taken_for_a_replica(capsys: Captured) -> None:
    with scripted() as script:
        assert main(["jobs", "list", "--address", script.address]) == 2
    assert capsys.readouterr().err == (
        f"octet jobs list: the server at {script.address} has no octet.v1.Jobs: it is not a router, or it is outdated\n"
    )


@pytest.mark.parametrize("verb", ["submit", "get", "list", "watch", "wait", "cancel"])
def test_unreachable_router_prints_how_to_start_it(verb: str, capsys: Captured) -> None:
    asked = [] if verb == "list" else ["x"]
    patience = ["--timeout", "0.5"] if verb in ("watch", "wait") else []
    assert main(["jobs", verb, *asked, *patience, "--address", "127.0.0.1:1"]) == 3
    output = f"octet jobs {verb}: nothing answers at 127.0.0.1:1; start it with: octet serve\n"
    assert capsys.readouterr().err == output


@pytest.mark.parametrize("verb", [["get", "job-1"], ["cancel", "job-1"], ["list"]])
def test_operator_names_the_tenant_of_jobs(capsys: Captured, verb: list[str]) -> None:
    with jobs_served(done()) as at:
        assert octet(at, *verb, "--tenant", "ann") == octet(at, *verb) == 0
        assert [call.tenant for call in at.calls] == ["ann", ""]
    assert capsys.readouterr().err == ""
