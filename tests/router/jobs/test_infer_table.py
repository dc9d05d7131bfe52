"""`POST /v1/infer` as docs/http.md has it, field by field against a real server; experts, waits, jobs on request."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from octet.config.ensemble import JobsConfig
from octet.v1 import specialist_pb2 as wire
from router.api.http.infer import InferRequest
from router.routing.validation import COUNTS, RANGES, SIZES
from router.store.jobs import JobBacklog
from tests.doc_examples import ROOT
from tests.router.http.harness import HttpResponse
from tests.router.jobs.harness import WORDS, JobsHarness, answering, running_jobs, until
from tests.router.jobs.test_infer import infer, named_events
from tests.router.serving.spy import ACCEPTED

_SAMPLING = {name.removeprefix("sampling.") for name in RANGES if name.startswith("sampling.")}
_SHARED = {"force_experts": "force_specialists", "exclude_experts": "exclude_specialists"}
_NOT_LISTED = ("seed",)  # its limit is that of the JSON number


def rows() -> list[tuple[list[str], str]]:
    """Return the names and the limit of each row of the table."""
    text = (ROOT / "docs" / "http.md").read_text()
    table = text.split("| field | limit | default |\n")[1].split("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [(re.findall(r"`(\w+)`", names), limit) for names, limit, _ in cells]


NAMES = [name for names, _ in rows() for name in names]
LIMITS = {name: limit for names, limit in rows() for name in names}


def wire_name(name: str) -> str:
    return f"sampling.{name}" if name in _SAMPLING else _SHARED.get(name, name)


def test_the_table_lists_every_field_once_with_the_limit_of_the_validator() -> None:
    assert sorted(NAMES) == sorted(InferRequest.__struct_fields__)
    for name, limit in LIMITS.items():
        field = wire_name(name)
        if field in RANGES and name not in _NOT_LISTED:
            assert str(RANGES[field]) in limit, name
        if field in COUNTS:
            assert f"at most {COUNTS[field]:,} items" in limit, name
        elif field in SIZES and field not in ("intent", "tools"):
            assert f"at most {SIZES[field]:,} bytes" in limit, name


def beyond(name: str) -> list[tuple[Any, Any]]:
    """Return values of a field, each on or within its limit, with one that exceeds it. None: there is none."""
    field = wire_name(name)
    if name == "seed":
        return [(2**63 - 1, 2**63), (-(2**63), -(2**63) - 1)]
    if field in RANGES:
        limits = RANGES[field]
        step = 1 if float(limits.most).is_integer() and name not in _SAMPLING - {"top_k", "num_logprobs"} else 1e-3
        low = limits.least + (1e-6 if limits.open else 0)
        return [(limits.most, limits.most + step), (low, limits.least if limits.open else limits.least - step)]
    if name in ("session_id", "user_id"):
        return [("x" * SIZES[field], "x" * (SIZES[field] + 1))]
    if name == "stop":
        return [(["x" * 256, *map(str, range(15))], "x" * 257), ("x", list(map(str, range(17))))]
    if name == "metadata":
        return [({str(n): "" for n in range(16)}, {str(n): "" for n in range(17)})]
    wrong: dict[str, Any] = {
        **{"prompt": " ", "template": "no marker", "body": 1, "intent": "unheard", "structure": {}, "tool_choice": "x"},
        **{"messages": [{"role": "user", "content": " "}], "tools": [{"name": "f"}] * 2, "adapters": list("abcde")},
        **{key: ["critic"] for key in ("force_specialists", "force_experts", "exclude_specialists", "exclude_experts")},
    }
    return [(None, wrong[name])] if name in wrong else [(True, 1), (False, "true")]


def as_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def ask(harness: JobsHarness, name: str, value: Any) -> HttpResponse:
    body: dict[str, Any] = {"prompt": "hello", "force_specialists": "writer", name: value}
    if name in ("force_experts", "messages"):
        body = {"prompt": None if name == "messages" else "hello", name: value}
    if name == "min_tokens":
        body["max_tokens"] = None
    return await harness.post("/v1/infer", body)


async def test_every_field_is_accepted_within_its_limit_and_refused_beyond_it(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        for name in NAMES:
            for within, outside in beyond(name):
                if within is not None and name != "embed":
                    accepted = await ask(harness, name, as_number(within))
                    is_late = accepted.status == 504 and "timeout" in name  # a millisecond may pass before its answer
                    assert accepted.status == 200 or is_late, (name, within, accepted.body)
                refused = await ask(harness, name, as_number(outside))
                assert refused.status in (400, 404), (name, outside, refused.body)
                param = refused.error["param"]
                assert param == name or param.startswith((f"{name}.", f"{name}[")), (name, refused.body)
                assert refused.headers["x-should-retry"] == "false"
        assert (await ask(harness, "colour", 1)).error["code"] == "unknown_field"


async def test_an_answer_names_its_experts_tokens_and_time(tmp_path: Path) -> None:
    async with running_jobs(tmp_path, adapters={"a": "x", "b": "y"}, use_adapters=("b", "a")) as harness:
        whole = (await infer(harness, force_specialists=None, force_experts="writer")).json
        assert whole["experts_used"] == ["writer", "b", "a"] == whole["receipt"]["experts_used"]
        assert whole["job_id"] == whole["id"] and whole["tokens_generated"] == len(WORDS)
        assert whole["latency_ms"] == round(whole["receipt"]["timings"]["total"] * 1000)
        events = dict(named_events(await infer(harness, stream=True, max_experts=2)))
        assert events["receipt"]["experts_used"] == ["writer", "b"]
        assert events["receipt"]["tokens_generated"] == len(WORDS)
        answer = await harness.client.infer("hello", force="writer", max_experts=1)
        assert (answer.experts_used, answer.tokens_generated) == (("writer",), len(WORDS))
        assert answer.latency_ms == answer.receipt.latency_ms >= 0
        named = (await infer(harness, adapters=["a"])).json
        assert named["experts_used"] == ["writer", "a"]


async def test_errors_name_the_field_that_the_caller_used(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        both = await infer(harness, force_experts=["writer"])
        assert (both.status, both.error["param"]) == (400, "force_experts")
        assert "force_specialists" in both.error["limit"]
        for path in ("/v1/infer", "/v1/jobs"):
            unknown = await harness.post(path, {"prompt": "hello", "force_experts": ["critic"]})
            assert (unknown.status, unknown.error["param"], unknown.error["code"]) == (
                404,
                "force_experts",
                "model_not_found",
            )
            assert unknown.error["limit"] == "one of writer"
        clash = await harness.post(
            "/v1/infer", {"prompt": "x", "force_experts": "writer", "exclude_experts": ["writer"]}
        )
        assert (clash.status, clash.error["param"]) == (400, "exclude_experts")


async def test_a_queued_stream_announces_its_wait(tmp_path: Path) -> None:
    """The wait is the replica's forecast. It is left out without one, and once the request runs."""
    accepted = wire.Accepted(queue_position=2, forecast=wire.Forecast(wait=1.25, total=2.0))
    waiting = wire.GenerateEvent(accepted=accepted)
    unknown = wire.GenerateEvent(accepted=wire.Accepted(queue_position=2))
    for event, status, wait in ((waiting, "queued", 1250), (unknown, "queued", None), (ACCEPTED, "processing", None)):
        async with running_jobs(tmp_path, _accepting(event)) as harness:
            routed = dict(named_events(await infer(harness, stream=True)))["routed"]
            assert (routed["status"], routed.get("estimated_wait_ms")) == (status, wait)
            assert routed["job_id"] == routed["receipt"]["request_id"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", routed["submitted_at"])


def _accepting(event: wire.GenerateEvent) -> Any:
    async def behave(_: wire.GenerateRequest, context: Any) -> None:
        await context.write(event)
        await context.write(wire.GenerateEvent(chunk=wire.Chunk(text="a", token_ids=[1])))
        await context.write(wire.GenerateEvent(usage=wire.Usage(finish_reason=wire.FINISH_REASON_STOP)))

    return behave


async def test_a_request_that_need_not_wait_becomes_a_job(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        body = {"prompt": "hello", "force_experts": ["writer"]}
        later = await harness.post("/v1/infer", body, prefer="wait=5, Respond-Async", **{"idempotency-key": "k"})
        assert (later.status, later.headers["preference-applied"]) == (202, "respond-async")
        job_id = later.json["job_id"]
        assert later.headers["location"] == f"/v1/jobs/{job_id}" and later.json["status"] in ("queued", "processing")
        assert (await harness.ended(job_id)).text == "".join(WORDS)
        again = await harness.post("/v1/infer", body, prefer="respond-async", **{"idempotency-key": "k"})
        assert (again.status, again.json["job_id"]) == (202, job_id)
        for fields, param in (
            ({"stream": True}, "stream"),
            ({"embed": True}, "embed"),
            ({"force_experts": "x"}, "force_experts"),
        ):
            refused = await harness.post("/v1/infer", {**body, **fields}, prefer="respond-async")
            assert (refused.status in (400, 404), refused.error["param"]) == (True, param)


async def test_a_queued_job_announces_its_wait_once_one_was_measured(tmp_path: Path) -> None:
    go = asyncio.Event()
    one_at_a_time = JobsConfig(lease=0.4, concurrency=1)
    async with running_jobs(tmp_path, answering(*WORDS, holds=go), one_at_a_time) as harness:
        first = (await harness.submit()).json["id"]
        await until(lambda: harness.spy.asked)
        behind = [(await harness.submit()).json for _ in range(2)]
        assert [each["estimated_wait_ms"] for each in behind] == [None, None], "nothing was measured yet"
        go.set()
        for job_id in (first, *(each["id"] for each in behind)):
            ended = await harness.ended(job_id)
            assert ended.status == "done" and ended.estimated_wait_ms is None
        go.clear()
        await harness.submit()
        await until(lambda: len(harness.spy.asked) == 4)
        waits = [(await harness.submit()).json for _ in range(3)]
        measured = [each["estimated_wait_ms"] for each in waits]
        assert measured == sorted(measured) and measured[0] is not None
        found = await harness.fronted.get(f"/v1/jobs/{waits[1]['id']}")
        assert found.json["estimated_wait_ms"] == measured[1]
        go.set()


@pytest.mark.parametrize(
    ("backlog", "slots", "expected"),
    [
        (JobBacklog(False, 0, ahead=0, claimed=0, seconds=()), 4, 0),
        (JobBacklog(False, 0, ahead=9, claimed=4, seconds=()), 4, None),
        (JobBacklog(False, 0, ahead=0, claimed=4, seconds=(2.0, 4.0)), 4, 750),
        (JobBacklog(False, 0, ahead=7, claimed=4, seconds=(3.0,)), 4, 6000),
        (JobBacklog(False, 0, ahead=7, claimed=8, seconds=(3.0,)), 4, 3000),
        (JobBacklog(False, 9_000, ahead=7, claimed=4, seconds=(3.0,)), 4, 8000),
        (JobBacklog(True, 9_000, ahead=7, claimed=4, seconds=(3.0,)), 4, 0),
        (JobBacklog(False, 9_000, ahead=0, claimed=0, seconds=()), 4, 8000),
        (JobBacklog(False, 0, ahead=0, claimed=0, seconds=(3.0,)), 0, None),
    ],
)
def test_the_wait_is_that_of_the_jobs_before_it(backlog: JobBacklog, slots: int, expected: int | None) -> None:
    assert backlog.estimate_ms(slots, now_ms=1000) == expected
