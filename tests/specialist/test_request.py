"""A request that cannot be served is refused immediately, and the error names the cause."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from kvpool import BlockPool
from octet.clock import ManualClock
from octet.identity import Lane
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.sequence import (
    InvalidRequestField,
    LaneMismatch,
    PromptTooLarge,
    Request,
    RequestRefused,
    Sequence,
)
from tests.specialist.builders import BARE, LANES, make_request

CAPACITY = 4
BLOCK_SIZE = 2
LONGEST_PROMPT = tuple(range(CAPACITY * BLOCK_SIZE - 1))


class EchoProposer:
    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Sequence) -> None: ...

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: self._guess(seq, limit) for seq, limit in limits.items()}

    def _guess(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        tokens = seq.chain.view()
        return tuple(tokens[:limit])


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(BlockPool(CAPACITY + 1, BLOCK_SIZE), SchedulerConfig(BARE), ManualClock(), proposer=EchoProposer())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", ""),
        ("prompt", ()),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("draft_window", -1),
        ("arrival", nan),
        ("arrival", -inf),
        ("deadline", nan),
        ("deadline", inf),
        ("request_id", 7),
        ("lane", "writer"),
        ("prompt", [1, 2]),
        ("max_tokens", 2.5),
        ("max_tokens", True),
        ("priority", "high"),
        ("priority", 2**63),
        ("arrival", "now"),
        ("deadline", "soon"),
        ("stop_ids", {1}),
        ("stop_ids", frozenset({"."})),
        ("seed", None),
        ("tenant_salt", "salt"),
    ],
)
def test_a_request_names_its_bad_field(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"request_id": "r", field: value}
    with pytest.raises(InvalidRequestField, match=field) as refusal:
        make_request(**fields)
    assert refusal.value.field == field


def test_a_refusal_keeps_the_tenants_salt_to_itself() -> None:
    with pytest.raises(InvalidRequestField) as refusal:
        make_request(tenant_salt="of the dead sea")
    assert "dead sea" not in str(refusal.value)


@pytest.mark.parametrize("token", [-1, 2**32, 2**64])
def test_an_invalid_token_is_refused(scheduler: Scheduler, token: int) -> None:
    with pytest.raises(InvalidRequestField) as refusal:
        scheduler.submit(make_request(prompt=(1, token)))
    assert refusal.value.field == "prompt"


def test_the_largest_token_is_accepted(scheduler: Scheduler) -> None:
    scheduler.submit(make_request(prompt=(0, 2**32 - 1)))
    assert "plain" in scheduler.ledger.live


def test_an_id_is_refused_while_it_is_live(scheduler: Scheduler) -> None:
    scheduler.submit(make_request("same"))
    with pytest.raises(InvalidRequestField) as refusal:
        scheduler.submit(make_request("same"))
    assert refusal.value.field == "request_id"
    scheduler.end("same", "cancelled")
    scheduler.submit(make_request("same"))
    assert "same" in scheduler.ledger.live


@pytest.mark.parametrize(
    ("lane", "differing"),
    [
        (replace(BARE, specialist="coder"), ["specialist"]),
        (replace(BARE, revision="f" * 64), ["revision"]),
        (replace(LANES[2], specialist="coder", revision="f" * 64), ["specialist", "revision"]),
    ],
)
def test_another_lane_is_refused_with_all_that_differs(scheduler: Scheduler, lane: Lane, differing: list[str]) -> None:
    with pytest.raises(LaneMismatch) as refusal:
        scheduler.submit(make_request(lane=lane))
    assert [line.split(":")[0] for line in refusal.value.differences] == differing


@pytest.mark.parametrize("lane", LANES)
def test_every_adapter_stack_is_accepted(scheduler: Scheduler, lane: Lane) -> None:
    scheduler.submit(make_request(lane=lane))
    assert "plain" in scheduler.ledger.live


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(PromptTooLarge) as refusal:
        scheduler.submit(make_request(prompt=(*LONGEST_PROMPT, 0)))
    assert (refusal.value.num_blocks, refusal.value.capacity) == (CAPACITY + 1, CAPACITY)


def test_an_answer_ends_when_the_pool_is_full(scheduler: Scheduler) -> None:
    scheduler.submit(make_request(prompt=LONGEST_PROMPT, max_tokens=1_000))
    assert scheduler.ledger.live["plain"].max_total_tokens == CAPACITY * BLOCK_SIZE


@pytest.mark.parametrize(("draft_window", "granted"), [(4, 4), (5, 0)])
def test_a_draft_window_that_never_fits_is_dropped(scheduler: Scheduler, draft_window: int, granted: int) -> None:
    scheduler.submit(make_request(draft_window=draft_window))
    assert scheduler.ledger.live["plain"].draft_window == granted


@pytest.mark.parametrize(
    "request_",
    [
        make_request(prompt=(-1,)),
        make_request(lane=replace(BARE, specialist="coder")),
        make_request(prompt=(*LONGEST_PROMPT, 0)),
    ],
    ids=["token", "lane", "size"],
)
def test_a_refusal_leaves_nothing_behind(scheduler: Scheduler, request_: Request) -> None:
    with pytest.raises(RequestRefused):
        scheduler.submit(request_)
    assert scheduler.take_events() == []
    assert scheduler.ledger.live == {}
    assert scheduler.assemble_step() is None
