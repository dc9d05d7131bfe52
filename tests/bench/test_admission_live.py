"""The admission bench with a real replica process and a real socket. Speed is not checked here."""

import json
from collections import Counter
from math import isfinite
from pathlib import Path

import pytest

from bench.admission.live import play_live, rate_between
from bench.admission.load import Offer, OfferOutcome, make_plan
from octet.cli import main

REASONS = {"deadline unreachable", "would delay others", "queue full", "deadline"}


@pytest.mark.slow
@pytest.mark.parametrize("routed", [False, True], ids=["replica", "router"])
def test_every_call_ends_once_and_every_refusal_is_typed(routed: bool) -> None:
    plan = make_plan((10.0,), 1.5, (1,), live=True)
    capacity, runs = play_live(plan, routed=routed)
    assert capacity > 0
    (run,) = runs
    asked = plan.offers(10.0, capacity, run.seed)
    assert sorted(outcome.offer.number for outcome in run.outcomes) == [offer.number for offer in asked]
    ends = Counter(outcome.end for outcome in run.outcomes)
    assert ends["failed"] == ends["cancelled"] == 0
    assert ends["in time"] > 0
    assert ends["refused"] > 0
    for refused in (outcome for outcome in run.outcomes if outcome.end == "refused"):
        assert refused.reason in REASONS
        assert refused.latency is not None
        assert refused.latency > 0
        assert refused.stated_wait is None or 0 < refused.stated_wait <= 30


def test_rate_is_measured_between_two_shares_of_the_answers() -> None:
    done = [OfferOutcome(Offer(i, 0.0, 1, 1, 1, 1, 1.0, work=2.0), "in time", at=float(i)) for i in range(11)]
    assert rate_between(done, 0.2, 0.8) == 2.0


def test_the_command_prints_two_tables_and_writes_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--loads", "1,5", "--seconds", "5", "--runs", "1", "--early", "0.2", "--json", str(out), "--quick"]
    assert main(["bench", "admission", *options]) == 0
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    keys = [(record["case"], record["system"], record["metric"]) for record in records]
    assert len(set(keys)) == len(keys)
    assert {record["bench"] for record in records} == {"admission"}
    assert {record["system"] for record in records} == {"octet", "fcfs", "fcfs tuned", "priority"}
    assert all(isfinite(record["value"]) for record in records)
    printed = capsys.readouterr().out
    assert "5 x, priority 9" in printed
    assert "work in time, of the peak" in printed
    assert "capacity: " in printed


def test_trace_has_the_same_requests_at_every_load(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:17:0{second}.5,{100 * second},{9 * second}" for second in range(1, 9)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    plan = make_plan((1.0, 4.0), 5, (1,), trace=trace)
    slow, fast = (plan.offers(load, 1.3, seed=1) for load in (1.0, 4.0))
    assert [offer.work for offer in slow] == [offer.work for offer in fast]
    assert [offer.at for offer in slow] == pytest.approx([4 * offer.at for offer in fast])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--loads", "1,ten"], "loads must be numbers above 0"),
        (["--loads", "0"], "loads must be numbers above 0"),
        (["--loads", "nan"], "loads must be numbers above 0"),
        (["--early", "2"], "a share must be a number from 0 to 1"),
        (["--router"], "--router requires --live"),
    ],
)
def test_mistake_is_reported(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "admission", *options])
    assert why in capsys.readouterr().err


def test_malformed_trace_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("nonsense\n")
    assert main(["bench", "admission", "--trace", str(trace)]) == 2
    assert f"octet bench: {trace}, line 1: " in capsys.readouterr().err
