"""The checker finds every kind of invalid history, and accepts a valid one."""

from dataclasses import replace
from typing import Any

import grpc
import pytest

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from octet.v1.specialist_pb2 import Chunk, Lane, Usage
from tests.faults.figures import holds, put_figure
from tests.faults.history import Account, History, Outage, Question, Violation, disagreements, violations

GOLDEN = {("poet", "a"): (1, 2, 3, 4, 5, 6), ("poet", "b"): (7, 8, 9, 7, 8, 1), ("cook", "a"): (3, 1, 4, 1, 5, 9)}
OK = grpc.StatusCode.OK


def receipt(tokens: int = 4, **fields: Any) -> wire.Receipt:
    given = {"specialist": "poet", "lane": Lane(specialist="poet"), "usage": Usage(completion_tokens=tokens)}
    return wire.Receipt(**{**given, **fields})


def account(*tokens: int, code: grpc.StatusCode = OK, **fields: Any) -> Account:
    """Return an account of a request to the poet for four tokens."""
    made = Account("x", Question("poet", "a", 4), codes=[code])
    made.add_event(wire.InferEvent(routed=wire.Receipt()), 0.0)
    for token in tokens:
        made.add_event(wire.InferEvent(chunk=Chunk(token_ids=[token])), 0.0)
    if code is OK:
        made.add_event(wire.InferEvent(receipt=receipt(len(tokens), **fields)), 0.0)
    return made


def lost(*tokens: int) -> Account:
    made = account(*tokens, code=grpc.StatusCode.UNAVAILABLE)
    made.error = error_pb2.Error(reason=error_pb2.ERROR_REASON_REPLICA_LOST, retry_after_ms=500)
    return made


def kinds(*accounts: Account) -> list[str]:
    return [each.kind for each in History(GOLDEN, list(accounts)).violations()]


def test_a_right_history_passes() -> None:
    gone = account(1, 2, code=OK)
    gone.left, gone.codes, gone.kinds = True, [], gone.kinds[:-1]
    for right in (account(1, 2, 3, 4), lost(), lost(1), lost(1, 2, 3), gone):
        assert kinds(right) == []


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((1, 2, 2, 3), "repeated at 2"),
        ((1, 2, 1, 2), "repeated at 2"),
        ((1, 2, 4, 5), "lost at 2"),
        ((2, 3, 4, 5), "lost at 0"),
        ((3, 1, 4, 1), "cook's answer to 'a'"),
        ((7, 8, 9, 7), "poet's answer to 'b'"),
        ((1, 2, 9, 4), "token 2 is wrong"),
        ((1, 2, 3), "3 tokens came instead of 4"),
        ((1, 2, 3, 4, 5), "5 tokens came instead of 4"),
    ],
)
def test_wrong_tokens_are_found_and_named(tokens: tuple[int, ...], words: str) -> None:
    (found,) = violations(account(*tokens), GOLDEN)
    assert found.kind == "tokens" and words in found.words
    if found.words[0] not in "35":
        (found,) = violations(lost(*tokens), GOLDEN)
        assert words in found.words, "the same holds for an answer that was cut off"


def test_another_count_in_the_receipt_is_found() -> None:
    made = account(1, 2, 3, 4)
    made.receipt = receipt(5)
    assert kinds(made) == ["tokens"]


def test_missing_double_and_unexplained_ends_are_found() -> None:
    for codes in ([], [OK, OK], [OK, grpc.StatusCode.UNAVAILABLE]):
        made = account(1, 2, 3, 4)
        made.codes = codes
        assert kinds(made) == ["end"]
    silent = account(1, code=grpc.StatusCode.UNAVAILABLE)
    assert violations(silent, GOLDEN) == [Violation("x", "end", "UNAVAILABLE without a reason")]
    made = lost(1)
    made.error = error_pb2.Error(reason=error_pb2.ERROR_REASON_REPLICA_LOST)
    assert violations(made, GOLDEN) == [Violation("x", "end", "it was lost without a retry-after")]
    for wrong in (None, receipt(error=error_pb2.Error(reason=error_pb2.ERROR_REASON_DEADLINE))):
        made = account(1, 2, 3, 4)
        made.receipt = wrong
        assert kinds(made) == ["end"]
    assert kinds(account(1, 2, 3, 4), account(1, 2, 3, 4)) == ["end"], "two requests have the same id"


def test_only_a_killed_router_may_end_requests_without_a_reason() -> None:
    cut = account(1, code=grpc.StatusCode.UNAVAILABLE)
    cut.began, cut.ended = 1.0, 2.0

    def found(*outages: Outage, made: Account = cut) -> list[str]:
        return [each.kind for each in History(GOLDEN, [made], list(outages)).violations()]

    assert found(Outage(1.5, True, 3.0)) == found(Outage(1.5, True)) == []
    assert found() == found(Outage(1.5, False, 3.0)) == ["end"], "a router that is shut down must give a reason"
    assert found(Outage(2.5, True, 3.0)) == found(Outage(0.1, True, 0.5)) == ["end"], (
        "the router was running when the request ended"
    )
    assert found(Outage(1.5, True, 1.9)) == ["end"], "the router was running again when the request ended"
    assert found(Outage(0.5, True, 3.0)) == ["end"], "a request without a connection waits for one"
    assert found(Outage(0.5, True, 3.0), made=replace(cut, connected=True)) == [], (
        "the channel had not noticed the kill yet"
    )
    assert found(Outage(0.5, False, 3.0), made=replace(cut, connected=True)) == ["end"]
    late = replace(cut, connected=True, began=1.6)
    assert found(Outage(0.5, True, 3.0), made=late) == ["end"], "every channel had noticed the kill by then"
    wrong = replace(cut, tokens=[9])
    assert found(Outage(1.5, True, 3.0), made=wrong) == ["tokens"], "tokens sent before the kill must be correct"
    twice = replace(cut, codes=[*cut.codes, OK])
    assert "end" in found(Outage(1.5, True, 3.0), made=twice)


def test_a_router_keeps_the_receipts_since_its_start() -> None:
    early, late = account(1, 2, 3, 4), account(1, 2, 3, 4)
    early.began, late.began = 1.0, 5.0
    assert History(GOLDEN, [early, late]).since_last_restart == [early, late]
    assert History(GOLDEN, [early, late], [Outage(2.0, False, 3.0)]).since_last_restart == [late]


def test_events_out_of_order_are_found() -> None:
    for order in (["chunk"], ["routed", "chunk", "routed"], ["routed", "receipt", "chunk"], ["receipt", "receipt"]):
        made = account(1, 2, 3, 4)
        made.kinds = order
        assert kinds(made) == ["order"]


@pytest.mark.parametrize("fields", [{"specialist": "cook"}, {"lane": Lane(specialist="cook")}])
def test_another_lane_in_the_receipt_is_found(fields: dict[str, Any]) -> None:
    assert kinds(account(1, 2, 3, 4, **fields)) == ["lane"]


def test_a_receipt_that_differs_is_found() -> None:
    error = error_pb2.Error(reason=error_pb2.ERROR_REASON_DEADLINE)
    assert disagreements(account(1, 2, 3, 4), receipt()) == []
    assert disagreements(account(1, 2, 3, 4), receipt(error=error)) != []
    assert disagreements(lost(1), receipt()) != []
    assert disagreements(lost(1), receipt(error=error)) != []


def test_a_figure_is_checked_against_its_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert holds(1.9, "< 2 s") and not holds(2.0, "< 2 s")
    assert holds(0, "== 0") and not holds(1, "== 0")
    assert holds(1e5, ">= 100,000 cases") and not holds(99_999, ">= 100,000 cases")
    for bound in ("2 s", "under 2", "<2", "< two"):
        with pytest.raises(ValueError, match="a bound is like"):
            holds(1, bound)
    path = tmp_path / "figures"
    monkeypatch.setenv("OCTET_FAULTS", str(path))
    monkeypatch.delenv("OCTET_FAULTS_FORM", raising=False)
    put_figure(1, "time", 3.0, "s", "< 2 s", short="< 20 s")
    monkeypatch.setenv("OCTET_FAULTS_FORM", "long")
    with pytest.raises(AssertionError, match="row 1, time: 3 s, required is < 2 s"):
        put_figure(1, "time", 3.0, "s", "< 2 s", short="< 20 s")
    line = '{"row": 1, "what": "time", "figure": 3.0, "unit": "s", "bound": "< 2 s", "held": false}\n'
    assert path.read_text() == 2 * line
