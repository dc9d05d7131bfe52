"""`octet slo`, `octet receipts` and `octet why`: output, requests and exit status."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet.cli import main
from octet.cli.receipts import SeenReceipts
from octet.client.receipts import Receipt
from octet.rpc.refusal import invalid_field
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from tests.octet.cli.operate.scripted_router import NOW_MS, ScriptedRouter, latency, receipt, router_served, slo

ROOT = Path(__file__).parents[4]
Captured = pytest.CaptureFixture[str]


def octet(router: ScriptedRouter, *arguments: str) -> int:
    return main([*arguments, "--address", router.address])


def document(router: ScriptedRouter, capsys: Captured, *arguments: str) -> Any:
    assert octet(router, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_slo_shows_figures_with_objectives(capsys: Captured) -> None:
    with router_served() as router:
        assert octet(router, "slo") == 0
        out = capsys.readouterr().out
        whole = " ".join(out.split())
        assert re.search(
            r"^stl +100/200/300 ms +11/22/33 ms +100 ms +85\.0% +90\.0% +240 +1\.0% +812$",
            out,
            re.M,
        )
        assert re.search(r"^stl +ttft_p95 +250 ms +200 ms +yes +5 min: 0\.4, 1 h: -$", out, re.M)
        assert re.search(r"^stl +correctness +90\.0% +85\.0% +no +5 min: 0\.4$", out, re.M)
        assert re.search(r"^template ", out, re.M)
        assert "latencies over the last 5 min, of 2 routers, within 1.0%; correct: over the last 24 h" in whole
        assert [each["specialist"] for each in document(router, capsys, "slo", "stl")["slos"]] == ["stl"]


def test_slo_without_samples(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = wire.Slo(specialist="stl", objectives=[wire.Objective(name="itl_p95", target=1.5, share=0.95)], routers=1)
    with router_served() as router:
        monkeypatch.setattr("tests.octet.cli.operate.scripted_router.slo", lambda name: bare)
        assert octet(router, "slo", "stl") == 0
        out = capsys.readouterr().out
        assert re.search(r"^stl +- +- +- +- +- +0 +- +0$", out, re.M)
        assert re.search(r"^stl +itl_p95 +1\.5 s +- +not measured +-$", out, re.M) and "of 1 router," in out
        without = slo("stl", objectives=[], ttft=latency(1.5))
        monkeypatch.setattr("tests.octet.cli.operate.scripted_router.slo", lambda name: without)
        assert octet(router, "slo", "stl") == 0
        out = capsys.readouterr().out
        assert "1.5/3/4.5 s" in out and "no objectives: the configuration has no targets" in out


def test_slo_names_specialists_without_samples(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    promised = [wire.Objective(name="itl_p95", target=1.5, share=0.95)]
    unseen = {"template": wire.Slo(specialist="template", objectives=promised, routers=1)}
    with router_served() as router:
        monkeypatch.setattr("tests.octet.cli.operate.scripted_router.slo", lambda name: unseen.get(name) or slo(name))
        assert octet(router, "slo") == 0
        out = capsys.readouterr().out
        assert re.search(r"^stl +ttft_p95 +250 ms", out, re.M) and not re.search(r"^template +itl_p95", out, re.M)
        assert "objectives without samples so far: template\n" in out


def test_each_receipt_is_one_line_with_its_marks(capsys: Captured) -> None:
    with router_served() as router:
        assert octet(router, "receipts", "--specialist", "stl", "--outcome", "refused", "--limit", "7") == 0
        heading, spilled, refused = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"time +id +specialist +outcome +ttft +total +tokens +marks", heading)
        marks = r"spilled, 2 asked, preempted 2x, shadowed by debug"
        assert re.fullmatch(rf"\d\d-\d\d [\d:]{{8}} +spilled +template +answered +200 ms +500 ms +20 +{marks}", spilled)
        assert re.fullmatch(r"[\d: -]{14} +refused +stl +refused: queue_full +- +500 ms +- +-", refused)
        assert router.asked == [wire.ListReceiptsRequest(most=7, specialist="stl", outcome="refused")]
        found = document(router, capsys, "receipts")["receipts"]
        assert [each["request_id"] for each in found] == ["spilled", "refused"]
        router.lately = []
        assert octet(router, "receipts") == 0
        assert capsys.readouterr().out == "no matching receipts\n"


def test_refused_field_is_named_by_its_option(capsys: Captured) -> None:
    with router_served() as router:
        for field, option, value in (("most", "--limit", "1500"), ("before_unix_ms", "--before", "9" * 17)):
            error = invalid_field(field, "in [0, 500]", value).error
            router.refusals["ListReceipts"] = (grpc.StatusCode.INVALID_ARGUMENT, error)
            assert octet(router, "receipts", option, value) == 2
            assert capsys.readouterr().err.startswith(f"octet receipts: {option} must be in [0, 500], got {value}")


def test_failed_over_request_is_marked(capsys: Captured) -> None:
    lost = wire.Attempt(specialist="stl", replica="stl-0", reason=error_pb2.ERROR_REASON_REPLICA_LOST)
    with router_served() as router:
        between = wire.Between(instead_of="debug")
        router.lately = [receipt("x\x1b[2J", attempts=[lost, wire.Attempt(replica="stl-1")], between=between)]
        assert octet(router, "receipts") == 0
        out = capsys.readouterr().out
        assert "stood in for debug, failed over" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("1790000000000", 1_790_000_000_000, 1_790_000_000_000), ("2026-01-31T12:00+00:00", 1769860800000, 1769860800000)],
)
def test_moment_is_milliseconds_or_iso_time(text: str, least: int, most: int) -> None:
    with router_served() as router:
        assert octet(router, "receipts", "--before", text) == 0
        assert least <= router.asked[0].before_unix_ms <= most


def test_moment_may_be_relative(capsys: Captured) -> None:
    with router_served() as router:
        before = round(time.time() * 1000)
        assert octet(router, "receipts", "--before", "10m") == 0
        after = round(time.time() * 1000)
        assert before - 600_001 <= router.asked[0].before_unix_ms <= after - 599_999
        with pytest.raises(SystemExit):
            octet(router, "receipts", "--before", "yesterday")
        assert "a time must be an age such as 10m" in capsys.readouterr().err
        assert octet(router, "receipts", "--before", "10m", "--follow") == 2
        assert "cannot be combined" in capsys.readouterr().err


def test_follow_shows_each_receipt_once_and_reports_gaps() -> None:
    router = ScriptedRouter()
    router.lately = [receipt("a")]
    command = [sys.executable, "-m", "octet.cli", "receipts", "--follow", "--limit", "2", "--json", "--address"]
    with router_served(router) as router:
        asked = [*command, router.address]
        with subprocess.Popen(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            try:
                assert json.loads(running.stdout.readline())["request_id"] == "a"
                router.lately = [receipt("b"), receipt("a")]
                assert json.loads(running.stdout.readline())["request_id"] == "b"
                router.lately = [receipt("e"), receipt("d")]
                assert "some are not shown" in json.loads(running.stdout.readline())["note"]
                assert [json.loads(running.stdout.readline())["request_id"] for _ in range(2)] == ["d", "e"]
            finally:
                running.terminate()


def test_seen_receipts_are_bounded() -> None:
    seen = SeenReceipts(most=3)
    made = [Receipt.from_wire(receipt(f"r{n}")) for n in range(6)]
    assert seen.add_new(made[:2]) == made[:2] and seen.add_new(made[:3]) == made[2:3]
    assert seen.add_new(made[3:6]) == made[3:6] and seen.add_new(made[3:6]) == []
    assert seen.add_new(made[:1]) == made[:1], "memory is limited, so the oldest receipt is dropped"


def test_why_shows_operators_all_and_callers_their_receipt(capsys: Captured) -> None:
    with router_served() as router:
        assert octet(router, "why", "spilled", "--tenant", "acme") == 0
        whole = capsys.readouterr().out
        assert "10 min before its arrival: ann: set knob stl.priority_floor (storm)" in whole
        assert "There is no comparison" in whole and "Only operators see" not in whole
        assert router.asked == [wire.ExplainRequest(request_id="spilled", tenant="acme")]
        found = document(router, capsys, "why", "spilled")
        assert set(found) == {
            "receipt",
            "comparison",
            "judged",
            "judged_kind",
            "judged_why",
            "changes",
            "told",
            "missing",
            "stages",
        }
        assert found["missing"] == "" and found["told"]["parts"][0]["title"] == "arrival"

        refused = error_pb2.Error(reason=error_pb2.ERROR_REASON_FORBIDDEN, message="the key may not operate")
        router.refusals["Explain"] = (grpc.StatusCode.PERMISSION_DENIED, refused)
        assert octet(router, "why", "spilled", "--tenant", "acme") == 0
        alone = capsys.readouterr().out
        assert "This is the caller's own receipt. Only operators see the shadow comparison" in " ".join(alone.split())
        assert "set knob" not in alone and "The comparison is visible to operators only." in alone
        assert router.asked[-1] == wire.GetReceiptRequest(request_id="spilled", tenant="acme")
        assert "this key may not operate" in document(router, capsys, "why", "spilled")["missing"]


def test_why_does_not_hide_failures_behind_missing_rights(capsys: Captured) -> None:
    gone = error_pb2.Error(reason=error_pb2.ERROR_REASON_STORE_UNAVAILABLE, message="the store does not answer")
    with router_served() as router:
        router.refusals["Explain"] = (grpc.StatusCode.UNAVAILABLE, gone)
        assert octet(router, "why", "spilled") == 3
        output = capsys.readouterr()
        assert output.out == "" and output.err.startswith("octet why: the store does not answer")
        unknown = error_pb2.Error(reason=error_pb2.ERROR_REASON_UNKNOWN_REQUEST, message="nothing is known of it")
        router.refusals["Explain"] = (grpc.StatusCode.NOT_FOUND, unknown)
        assert octet(router, "why", "spilled") == 2
        assert octet(router, "why", "\udcff") == 2


def test_control_characters_in_receipts_are_removed(capsys: Captured) -> None:
    with router_served() as router:
        hostile = receipt("h", replica="\x1b]0;gotcha\x07", session_id="\x9b31m", session_source="session_id")
        router.lately = [hostile]
        assert octet(router, "why", "h") == 0
        out = capsys.readouterr().out
        assert out.replace("\n", "").isprintable() and "gotcha" in out


def test_equal_ids_are_distinguished_by_time() -> None:
    seen = SeenReceipts()
    first, again = (Receipt.from_wire(receipt("same", created_unix_ms=NOW_MS + n)) for n in (0, 1))
    assert seen.add_new([first]) == [first] and seen.add_new([again, first]) == [again]
