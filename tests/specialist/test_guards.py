"""Rare cases that random histories seldom reach."""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, cast

import pytest

from kvpool import BlockPool, TokenChain
from specialist.engines.base import Completion
from specialist.engines.sim.engine import SimState
from specialist.scheduling.ledger import Hybrid
from specialist.scheduling.sequence import FinishReason, Request, Sequence
from specialist.scheduling.step import Admitted, Outcome, Rollback, Row, Step, StepOutcome
from tests.laws.oracle import OracleProposer
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import BARE


class FixedProposer:
    """A proposer that always proposes the same tokens."""

    def __init__(self, guess: object) -> None:
        self._guess = guess

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Sequence) -> None: ...

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return dict.fromkeys(limits, cast(tuple[int, ...], self._guess))


def request(request_id: str, prompt: Iterable[int] = (1, 2, 3), **changes: Any) -> Request:
    fields: dict[str, Any] = {"max_tokens": 6} | changes
    return Request(request_id, BARE, tuple(prompt), **fields)


def test_rejected_drafts_are_zeroed() -> None:
    replica = Replica(Shape(block_size=4), proposer=FixedProposer((1, 1)))
    discarded: list[Rollback] = []
    discard = replica.engine.discard
    replica.engine.discard = lambda rollbacks: discarded.extend(rollbacks) or discard(discarded)  # type: ignore[method-assign, func-returns-value]
    replica.scheduler.submit(request("r", draft_window=2))
    replica.loop.run_once()
    step = replica.loop.run_once()
    assert step is not None
    assert step.mode == "spec_verify"
    assert [(rollback.start, rollback.stop) for rollback in discarded] == [(4, 6)]
    assert replica.engine.memory.read_block(step.rows[0].table.block_ids[1])[:2] == (None, None)


@pytest.mark.parametrize("guess", [[1, 2], (-5,), (2**40,), ("a",), None, 7], ids=repr)
def test_an_invalid_proposal_costs_only_its_drafts(guess: object) -> None:
    replica = Replica(Shape(), proposer=FixedProposer(guess))
    asked = request("r", draft_window=2)
    assert replica.run([asked]) == {"r": replica.model.answer(asked)}
    assert replica.pool.num_free == replica.pool.capacity


def without_its_second_row(outcome: Outcome) -> Outcome:
    sampled = cast(StepOutcome, outcome).sampled
    return StepOutcome((sampled[0], cast(tuple[int, ...], None), sampled[2]))


@pytest.mark.parametrize(
    ("malform", "ends"),
    [
        (lambda outcome: None, dict.fromkeys("abc", "length")),
        (lambda outcome: "x", dict.fromkeys("abc", "length")),
        (lambda outcome: StepOutcome(()), dict.fromkeys("abc", "length")),
        (lambda outcome: StepOutcome(cast(tuple[tuple[int, ...], ...], None)), dict.fromkeys("abc", "length")),
        (without_its_second_row, {"a": "length", "b": "error", "c": "length"}),
    ],
    ids=["nothing", "text", "no rows", "no tuple", "a row of nothing"],
)
def test_a_malformed_outcome_costs_no_neighbour(malform: Callable[[Outcome], Outcome], ends: dict[str, str]) -> None:
    replica = Replica(Shape())
    run = replica.engine.run

    def first_malformed(step: Step) -> Iterable[Completion]:
        return [Completion(step, malform(c.outcome)) if step.number == 1 else c for c in run(step)]

    replica.engine.run = first_malformed  # type: ignore[method-assign]
    asked = [request(name, prompt) for name, prompt in (("a", (1, 2)), ("b", (3, 4)), ("c", (5, 6)))]
    answers = replica.run(asked)
    assert replica.ends() == ends
    assert all(answers[r.request_id] == replica.model.answer(r) for r in asked if ends[r.request_id] == "length")
    assert replica.pool.num_free == replica.pool.capacity


@pytest.mark.parametrize("completions", [[None], None, 7])
def test_an_invalid_completion_fails_the_step(completions: object) -> None:
    replica = Replica(Shape())
    replica.engine.run = lambda step: cast(list[Completion], completions)  # type: ignore[method-assign]
    replica.run([request("a"), request("b")])
    assert replica.ends() == {"a": "error", "b": "error"}
    assert replica.pool.num_free == replica.pool.capacity


def test_whatever_an_engine_raises_never_stops_the_loop() -> None:
    replica = Replica(Shape())

    def broken(step: Step) -> Iterable[Completion]:
        raise MemoryError("out of device memory")

    replica.engine.run = broken  # type: ignore[method-assign]
    replica.run([request("a"), request("b")])
    assert replica.ends() == {"a": "error", "b": "error"}


def test_a_discard_that_raises_never_stops_the_loop() -> None:
    replica = Replica(Shape())

    def broken(rollbacks: Iterable[Rollback]) -> None:
        raise RuntimeError("no")

    replica.engine.discard = broken  # type: ignore[method-assign]
    asked = request("a")
    assert replica.run([asked]) == {"a": replica.model.answer(asked)}
    assert replica.loop.num_failed_discards > 0


@pytest.mark.parametrize("method", ["trim", "snapshot", "restore"])
def test_a_state_that_raises_costs_its_own_sequence_at_most(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("device lost")

    replica = Replica(Shape(num_blocks=9, hybrid=True))
    monkeypatch.setattr(SimState, method, broken)
    replica.run([request(f"r{i}", range(10 * i, 10 * i + 9), priority=i) for i in range(4)])
    assert len(replica.ends()) == 4
    assert replica.pool.num_free == replica.pool.capacity


def test_an_engine_without_room_for_a_state_costs_the_one_request() -> None:
    replica = Replica(Shape(hybrid=True))

    def no_room() -> SimState:
        raise MemoryError("no slot")

    states = replica.scheduler.states
    assert isinstance(states, Hybrid)
    states.new_state = no_room
    replica.run([request("a"), request("b")])
    assert replica.ends() == {"a": "error", "b": "error"}


def test_drafts_are_dropped_before_a_request_is_preempted() -> None:
    """Both requests speculate. The pool has room for their tokens but not for their drafts."""
    replica = Replica(Shape(num_blocks=6, block_size=2, prefix_cache=False))
    rng = Random(0)
    proposer = OracleProposer(rng, replica.model)
    replica.scheduler.rows._proposer = proposer
    for name, prompt in (("a", (1, 2)), ("b", (3, 4))):
        replica.scheduler.submit(request(name, prompt, max_tokens=3))
    for seq in replica.scheduler.ledger.live.values():
        seq.draft_window = 0
    replica.loop.run_once()
    for seq in replica.scheduler.ledger.live.values():
        seq.draft_window = 6
        seq.max_total_tokens = 20
    proposer.propose = lambda limits, num_rows, most: {  # type: ignore[method-assign]
        seq: (1,) * limit for seq, limit in limits.items()
    }
    step = replica.scheduler.assemble_step()
    assert step is not None
    assert [row.num_drafts for row in step.rows] == [0, 0]


def hits(replica: Replica) -> list[int]:
    return [event.num_hit_tokens for event in replica.events if isinstance(event, Admitted)]


def test_a_prompt_that_ends_on_a_block_can_be_resumed() -> None:
    """A cache lookup never covers a prompt's last token, so the second request can reuse only two of the three blocks.
    The first request must therefore leave a snapshot of the recurrent state after the second block."""
    replica = Replica(Shape(block_size=4, hybrid=True))
    for name in ("first", "again"):
        replica.run([request(name, range(12))])
    assert hits(replica) == [0, 8]


def test_a_prefix_that_two_prompts_share_gets_a_snapshot_where_they_part() -> None:
    replica = Replica(Shape(block_size=4, hybrid=True))
    for i in range(3):
        replica.run([request(f"r{i}", (*range(10), *range(20 * i, 20 * i + 6)))])
    assert hits(replica) == [0, 0, 8]


def test_padding_leaves_every_live_block_as_it_was() -> None:
    replica = Replica(Shape())
    replica.scheduler.submit(request("a"))
    replica.loop.run_once()
    row: Row = replica.scheduler.assemble_step().rows[0]  # type: ignore[union-attr]
    before = [replica.engine.memory.read_block(block_id) for block_id in row.table.block_ids]
    replica.engine.memory.write_padding(99)
    assert [replica.engine.memory.read_block(block_id) for block_id in row.table.block_ids] == before


def test_an_unknown_reason_is_refused() -> None:
    replica = Replica(Shape())
    replica.scheduler.submit(request("a"))
    with pytest.raises(ValueError, match="reason must be one of"):
        replica.scheduler.end("a", cast(FinishReason, "banana"))


def test_a_pool_keeps_to_its_own_plans_and_tables() -> None:
    mine, other = BlockPool(8, 2), BlockPool(8, 2)
    chain = TokenChain(b"root", 2, [1, 2, 3])
    with pytest.raises(ValueError, match="headroom must be at least 0"):
        mine.admit(chain, 4, headroom=-1)
    with pytest.raises(RuntimeError, match="another pool"):
        mine.apply(other.admit(chain, 4))
    table = other.apply(other.admit(chain, 4))
    with pytest.raises(AssertionError, match="another pool"):
        mine.release(table)
    other.release(table)
    assert other.num_free == other.capacity
