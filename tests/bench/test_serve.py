"""Loads on endpoints that behave well and on endpoints that do not."""

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bench.serving.callers import BenchEndpoint, OpenAICaller, ServedAnswer, named_apart, parse_origin
from bench.serving.report import ALL, GOODPUT, class_records, records, warnings
from bench.serving.systems import LoadRound, play
from bench.serving.workload import Ask, CallerClass, ServeMistake
from octet.cli import main
from tests.bench import fake_endpoint as fake
from tests.bench.fake_endpoint import FakeEndpoint, Reply, listening

SLOW = CallerClass("slow", 0.5, 2, 60.0, 120.0)
HASTY = CallerClass("hasty", 0.5, 6, 1e-9, 120.0)
_Result = TypeVar("_Result")


def asks_at(*times: float, caller: CallerClass = SLOW) -> list[Ask]:
    return [Ask(number, at, 50, 4, caller, 0) for number, at in enumerate(times)]


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    return asyncio.run(coroutine)


async def loaded(endpoint: FakeEndpoint, asks: list[Ask], model: str = "small", give_up: float = 120.0) -> LoadRound:
    async with listening(endpoint) as url:
        caller = OpenAICaller(parse_origin(url), model, "secret", give_up)
        try:
            await caller.check()
            return await play("fake", caller, asks, 1.0)
        finally:
            await caller.close()


def only(answers: tuple[ServedAnswer, ...]) -> ServedAnswer:
    (answer,) = answers
    return answer


def test_an_answer_is_timed_and_counted() -> None:
    endpoint = FakeEndpoint(fake.well)
    found = run(loaded(endpoint, asks_at(0.0, 0.01, 0.02)))
    for answer in found.answers:
        assert answer.end == "answered"
        assert answer.good
        assert len(answer.pieces) == answer.tokens == 4
        assert 0 < answer.pieces[0] <= answer.pieces[-1] <= answer.total <= found.lasted
        assert answer.behind >= 0
        assert answer.prompt_tokens == pytest.approx(50, abs=2)
    assert endpoint.keys == {"Bearer secret"}
    assert not any("octet" in asked for asked in endpoint.received)


def test_arrivals_do_not_wait_for_answers() -> None:
    """The endpoint answers only after the last request has arrived."""

    async def when_all_are_here(endpoint: FakeEndpoint, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        if len(endpoint.received) == endpoint.spared + 20:
            endpoint.released.set()
        await endpoint.released.wait()
        await fake.well(endpoint, writer, asked)

    found = run(loaded(FakeEndpoint(when_all_are_here), asks_at(*(0.01 * number for number in range(20)))))
    assert [answer.end for answer in found.answers] == ["answered"] * 20
    assert found.answers[0].pieces[0] > 0.15  # The wait counts from the time at which the request was due.


def test_connection_is_reused() -> None:
    async def ask_three_times() -> int:
        endpoint = FakeEndpoint(fake.well)
        async with listening(endpoint) as url:
            caller = OpenAICaller(parse_origin(url), "small", None, 120.0)
            for _ in range(3):
                await play("fake", caller, asks_at(0.0), 1.0)
            await caller.close()
        return endpoint.num_connections

    assert run(ask_three_times()) == 1


def test_only_octet_gets_the_caller_class() -> None:
    endpoint = FakeEndpoint(fake.well, models=("octet", "octet/talker"))
    run(loaded(endpoint, asks_at(0.0), model="octet/talker"))
    times = {"timeout_ms": 120_000, "first_token_timeout_ms": 60_000}
    assert endpoint.received[-1]["octet"] == {"priority": 2, **times}


def refusing(status: int, headers: str = "") -> Reply:
    async def reply(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
        writer.write(fake.plain(status, {"error": {"message": "no  room\nhere"}}, headers))

    return reply


@pytest.mark.parametrize(
    ("status", "headers", "end", "has_retry_after"),
    [
        (429, "Retry-After: 3\r\n", "refused", True),
        (429, "", "refused", False),
        (503, "retry-after-ms: 20\r\n", "refused", True),
        (500, "", "failed", False),
        (504, "", "failed", False),
    ],
)
def test_refused_requests_are_separate_from_failed_ones(
    status: int, headers: str, end: str, has_retry_after: bool
) -> None:
    answer = only(run(loaded(FakeEndpoint(refusing(status, headers)), asks_at(0.0))).answers)
    assert (answer.end, answer.retry_after) == (end, has_retry_after)
    assert answer.why == f"{status}: no room here"
    assert not answer.good


async def cut_off(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    writer.write(fake.SSE + fake.event({"choices": [{"delta": {"content": "x"}}]}))
    writer.close()


async def ends_early(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    writer.write(fake.SSE + fake.event({"choices": [{"delta": {"content": "x"}}]}) + fake.chunk(b""))


async def fails_later(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    writer.write(fake.SSE + fake.event({"choices": [{"delta": {"content": "x"}}]}))
    writer.write(fake.event({"error": {"message": "the deadline has passed", "code": "deadline"}}) + fake.chunk(b""))


async def hangs(endpoint: FakeEndpoint, _: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    await endpoint.released.wait()


async def babbles(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    writer.write(b"220 smtp.example ESMTP\r\n\r\n")


async def bad_chunks(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    writer.write(fake.SSE + b"zz\r\nhello\r\n")


@pytest.mark.parametrize(
    ("reply", "end", "why"),
    [
        (cut_off, "failed", "cut off"),
        (ends_early, "failed", "without a reason"),
        (fails_later, "expired", "the deadline has passed"),
        (hangs, "failed", "no token within 0.2 s"),
        (babbles, "failed", "not HTTP/1.1"),
        (bad_chunks, "failed", "broken chunks"),
    ],
)
def test_every_failure_ends_with_a_reason(reply: Reply, end: str, why: str) -> None:
    give_up = 0.2 if reply is hangs else 120.0
    answer = only(run(loaded(FakeEndpoint(reply), asks_at(0.0), give_up=give_up)).answers)
    assert answer.end == end
    assert why in answer.why
    assert not answer.good


async def stalls(endpoint: FakeEndpoint, writer: asyncio.StreamWriter, _: dict[str, Any]) -> None:
    writer.write(fake.SSE + fake.event({"choices": [{"delta": {"content": "x"}}]}))
    await endpoint.released.wait()


@pytest.mark.parametrize("model", ["small", "octet"])
def test_caller_hangs_up_at_its_deadline_with_any_endpoint(model: str) -> None:
    asks = asks_at(0.0, caller=CallerClass("brief", 1.0, 2, 3.0, 3.0))
    answer = only(run(loaded(FakeEndpoint(stalls, models=(model,)), asks, model)).answers)
    assert (answer.end, answer.why) == ("expired", "no whole answer within 3 s")
    assert answer.total >= 3
    assert len(answer.pieces) == answer.tokens == 1, "a piece that arrived must count"
    assert not answer.good


@pytest.mark.parametrize("model", ["small", "octet"])
def test_a_caller_hangs_up_without_a_first_token_in_time(model: str) -> None:
    asks = asks_at(0.0, caller=CallerClass("brief", 1.0, 2, 0.1, 60.0))
    answer = only(run(loaded(FakeEndpoint(hangs, models=(model,)), asks, model)).answers)
    assert (answer.end, answer.why) == ("expired", "no token within 0.1 s")
    assert answer.total >= 0.1 and not answer.pieces and not answer.good


def test_endpoint_without_token_counts_is_noted() -> None:
    async def checked() -> str:
        async with listening(FakeEndpoint(fake.well, counts_tokens=False)) as url:
            caller = OpenAICaller(parse_origin(url), "small", None, 10.0)
            note = await caller.check()
            await caller.close()
            return note

    assert "sends no usage" in run(checked())


def test_figures_add_up_and_goodput_is_not_throughput() -> None:
    asks = [*asks_at(0.0, 0.01), *asks_at(0.02, 0.03, caller=HASTY)]
    rounds = [run(loaded(FakeEndpoint(fake.well), asks)) for _ in range(2)]
    found = {(each.case, each.metric): each.value for each in [*class_records(rounds, [SLOW, HASTY]), *records(rounds)]}
    assert (found[ALL, "offered"], found[ALL, "answered"], found["hasty", "expired"]) == (4, 2, 2)
    assert found[ALL, GOODPUT] == found["slow", GOODPUT] == 2  # The round lasts one second.
    assert found["hasty", GOODPUT] == found["hasty", "in time"] == 0
    assert found[ALL, "share within both deadlines"] == 50
    assert found[ALL, "throughput"] > 0
    assert found[ALL, "goodput, tokens"] == 8
    late = [replace(each, answers=(*each.answers, replace(each.answers[0], total=999.0))) for each in rounds]
    with_late = {(each.case, each.metric): each.value for each in [*class_records(late, [SLOW, HASTY]), *records(late)]}
    assert (with_late[ALL, "answered"], with_late[ALL, GOODPUT]) == (3, 2), (
        "a late answer counts as an answer, but not as goodput"
    )


def test_late_load_generator_and_failures_are_reported() -> None:
    ask = asks_at(0.0)[0]
    late = ServedAnswer(ask, "answered", (0.1,), 0.2, ask.answer_tokens, behind=0.4)
    lost = ServedAnswer(ask, "failed", why="gone")
    assert warnings([LoadRound("x", 1.0, 1.0, (replace(late, behind=0.0),), 0.1)]) == []
    found = warnings([LoadRound("x", 1.0, 1.0, (late, lost, lost), 0.95)])
    assert ["itself was late by 400 ms" in found[0], "95 % of a core" in found[1]] == [True, True]
    assert found[2:] == ["x: failed 2 times: gone"]


def test_answers_shorter_than_requested_cause_a_warning() -> None:
    ask = asks_at(0.0)[0]
    whole, short = (ServedAnswer(ask, "answered", (0.1,), 0.2, count) for count in (ask.answer_tokens, 1))
    assert warnings([LoadRound("x", 1.0, 1.0, (whole, short), 0.1)]) == []
    (warning,) = warnings([LoadRound("x", 1.0, 1.0, (whole, short, short), 0.1)])
    assert warning == f"warning: x: answers had {ask.answer_tokens + 2} tokens; {3 * ask.answer_tokens} were requested"


@pytest.mark.parametrize("count", [99, 100])
def test_99th_percentile_covers_all_rounds_and_needs_enough_samples(count: int) -> None:
    ask = asks_at(0.0)[0]
    rounds = [
        LoadRound("x", 1.0, 1.0, tuple(ServedAnswer(ask, "answered", (at + i / 1000,), 0.5) for i in range(count)), 0.1)
        for at in (0.0, 1.0)
    ]
    found = [record for record in records(rounds) if record.metric == "TTFT p99"]
    assert [record.value for record in found] == ([] if count < 100 else [pytest.approx(1097)])


def test_equal_system_names_are_made_distinct() -> None:
    endpoints = [
        BenchEndpoint("http", "u", model, name) for name, model in (("a", "m"), ("b", "m"), ("b", "n"), ("b", "n"))
    ]
    assert [each.name for each in named_apart(endpoints)] == ["a", "b m", "b n (1)", "b n (2)"]


async def from_outside(endpoint: FakeEndpoint, *options: str) -> int:
    """Run the command in its own thread, against an endpoint in this event loop."""
    async with listening(endpoint) as url:
        words = ["bench", "serve", "--model", "small", *options]
        return await asyncio.to_thread(main, [word.replace("URL", url) for word in words])


def test_two_endpoints_are_compared_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    load = ["--rate", "30", "--seconds", "1", "--runs", "2", "--output-tokens", "3"]
    options = ["--url", "URL", "--beside", "URL", *load, "--result", str(out)]
    endpoint = FakeEndpoint(fake.well)
    assert run(from_outside(endpoint, *options)) == 0
    result = json.loads(out.read_text())
    systems = Counter(record["system"] for record in result["records"])
    assert len(systems) == 2
    assert any(record["case"].startswith("all vs ") for record in result["records"])
    assert len({(each["case"], each["system"], each["metric"]) for each in result["records"]}) == len(result["records"])
    assert "interactive" in capsys.readouterr().out


def only_error_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "octet bench: " in line]
    return line


async def no_stream(_: FakeEndpoint, writer: asyncio.StreamWriter, __: dict[str, Any]) -> None:
    writer.write(fake.plain(200, {"choices": [{"message": {"content": "all at once"}}]}))


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        (FakeEndpoint(fake.well, models=("large",)), "unknown model 'small' (known: large)"),
        (FakeEndpoint(no_stream, spared=0), "asked for a stream of events (SSE), got application/json"),
        (FakeEndpoint(refusing(401), spared=0), "401: no room here"),
        (FakeEndpoint(babbles, spared=0), "an answer that is not HTTP/1.1"),
        (FakeEndpoint(cut_off, spared=0), "cut off"),
    ],
    ids=["wrong model", "no stream", "no key", "no HTTP", "cut off"],
)
def test_unusable_endpoint_is_reported_in_one_line(
    endpoint: FakeEndpoint, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(from_outside(endpoint, "--url", "URL", "--seconds", "1")) == 2
    assert why in only_error_line(capsys)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--url", "http://127.0.0.1:1/v1"], "http://127.0.0.1:1/v1: cannot be reached"),
        (["--grpc", "127.0.0.1:1"], "127.0.0.1:1: unavailable"),
        (["--url", "http://127.0.0.1:1"], "ends with /v1; did you mean http://127.0.0.1:1/v1?"),
        (["--url", "127.0.0.1:1/v1"], "must be http://HOST:PORT/v1"),
        (["--url", "http://127.0.0.1:1/v1", "--key", "NO_SUCH_VARIABLE"], "is not set"),
        (["--class", "fast"], "a class must be written as NAME"),
        (["--prompt-tokens", "many"], "a length must be written as N"),
        (["--trace", "no-such-file"], "no-such-file: "),
    ],
)
def test_mistake_is_reported_in_one_line(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--model", "small", *options]) == 2
    assert why in only_error_line(capsys)


def test_key_is_not_sent_unencrypted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    assert main(["bench", "serve", "--url", "http://192.0.2.1/v1", "--model", "m", "--key", "SOME_KEY"]) == 2
    assert "unencrypted" in only_error_line(capsys)


def test_an_origin_is_parsed() -> None:
    assert parse_origin("https://example.org/api/v1/").name == "example.org:443"
    with pytest.raises(ServeMistake):
        parse_origin("http://host:port/v1")


@pytest.mark.slow
def test_own_ensemble_is_measured_over_both_protocols(tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    options = ["--doors", "http,grpc", "--rate", "3", "--result", str(out), "--plot", str(plot)]
    assert main(["bench", "serve", "--quick", *options]) == 0
    assert plot.read_text().startswith("<?xml")
    found = {
        (each["case"], each["system"], each["metric"]): each["value"] for each in json.loads(out.read_text())["records"]
    }
    for system in ("octet", "octet grpc"):
        assert found["all", system, "failed"] == 0
        assert found["all", system, "answered"] > 0
