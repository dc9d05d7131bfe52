"""The sim engine: exact answers, a cost for every step shape, and faults on demand."""

from typing import Any, get_args

import pytest

from kvpool import BlockPool, BlockTable, TokenChain
from octet.identity import Lane
from specialist.engines.sim.engine import (
    CostModel,
    FaultKind,
    InjectedFault,
    PoisonedRead,
    SimMemory,
    SimModel,
    SimState,
)
from specialist.scheduling.sequence import Request, SnapshotUnusable
from specialist.scheduling.step import Step
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import BARE

PROMPT = (4, 8, 15, 16, 23, 42)


def request(request_id: str = "r", **changes: Any) -> Request:
    fields: dict[str, Any] = {"lane": BARE, "prompt": PROMPT, "max_tokens": 8} | changes
    return Request(request_id, **fields)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": (5, *PROMPT[1:])},
        {"prompt": (PROMPT[1], PROMPT[0], *PROMPT[2:])},
        {"prompt": PROMPT[1:]},
        {"lane": Lane(BARE.specialist, BARE.revision, ("d" * 64,))},
        {"lane": Lane(BARE.specialist, "e" * 64)},
        {"lane": Lane("stl", BARE.revision)},
        {"seed": 1},
    ],
    ids=["first token", "order", "length", "adapter", "revision", "specialist", "seed"],
)
@pytest.mark.parametrize("hybrid", [False, True])
def test_everything_that_should_matter_changes_the_answer(changes: dict[str, Any], hybrid: bool) -> None:
    model = SimModel(hybrid=hybrid)
    assert model.answer(request()) != model.answer(request(**changes))


@pytest.mark.parametrize("changes", [{"priority": 9}, {"tenant_salt": b"x"}, {"arrival": 3.0}, {"draft_window": 4}])
def test_nothing_else_changes_the_answer(changes: dict[str, Any]) -> None:
    assert SimModel().answer(request()) == SimModel().answer(request(**changes))


def run_with(fault: InjectedFault | None, at_step: int = 1) -> Replica:
    def faults(step: Step) -> InjectedFault | None:
        return fault if step.number == at_step else None

    replica = Replica(Shape(), faults=faults)
    replica.run([request("a"), request("b", prompt=(1, 2, 3)), request("c", prompt=(7,))])
    return replica


@pytest.mark.parametrize("kind", [kind for kind in get_args(FaultKind) if kind != "fail_row"])
def test_a_fault_without_a_culprit_costs_no_answer(kind: FaultKind) -> None:
    replica = run_with(InjectedFault(kind))
    assert replica.answers() == run_with(None).answers()
    assert replica.scheduler.num_stale_commits == (kind in ("late", "duplicate"))


@pytest.mark.parametrize("fault", [InjectedFault("fail_before", row=1, named=True), InjectedFault("fail_row", row=1)])
def test_a_fault_with_a_culprit_costs_that_one_only(fault: InjectedFault) -> None:
    replica, healthy = run_with(fault), run_with(None)
    assert replica.ends() == healthy.ends() | {"b": "error"}
    assert {k: v for k, v in replica.answers().items() if k != "b"} == {
        k: v for k, v in healthy.answers().items() if k != "b"
    }


def test_a_request_that_always_fails_is_the_only_one_lost() -> None:
    """The engine cannot tell which request failed. The scheduler finds it by running each suspect alone."""

    def faults(step: Step) -> InjectedFault | None:
        poison = any(row.sequence.request.request_id == "b" for row in step.rows)
        return InjectedFault("fail_after") if poison else None

    replica = Replica(Shape(), faults=faults)
    replica.run([request("a"), request("b", prompt=(1, 2, 3)), request("c", prompt=(7,))])
    assert replica.ends() == {"a": "length", "b": "error", "c": "length"}
    assert replica.answers()["a"] == replica.model.answer(request("a"))


def seconds(fault: InjectedFault | None) -> float:
    return run_with(fault).clock.now()


def test_time_passes_by_the_cost_model() -> None:
    replica = Replica(Shape())
    replica.scheduler.submit(request(max_tokens=2))
    cost = CostModel()
    replica.loop.run_once()
    prefill = cost.prefill_step + cost.prefill_token * 6 + cost.prefill_pair * 36
    assert replica.clock.now() == pytest.approx(prefill)
    replica.loop.run_once()
    assert replica.clock.now() == pytest.approx(prefill + cost.decode_step + cost.decode_token + cost.decode_pair * 7)
    assert seconds(InjectedFault("slow", factor=10.0)) > seconds(None)


def test_switching_adapters_and_preempting_cost_extra() -> None:
    replica = Replica(Shape())
    replica.scheduler.submit(request())
    step = replica.scheduler.assemble_step()
    assert step is not None
    cost = CostModel()
    plain = cost.seconds(step, switched=False)
    assert cost.seconds(step, switched=True) == pytest.approx(plain + cost.adapter_switch)
    crowded = Step(step.number, step.adapters, step.rows, num_preempted=3, started_at=step.started_at)
    assert cost.seconds(crowded, switched=False) == pytest.approx(plain + 3 * cost.preemption)


def table_of(num_blocks: int) -> BlockTable:
    pool = BlockPool(num_blocks + 1, 2)
    return pool.apply(pool.admit(TokenChain(b"", 2), 2 * num_blocks))


def test_reading_unwritten_slots_is_an_error() -> None:
    memory, table = SimMemory(4, 2), table_of(3)
    for position in range(4):
        memory.write(table, position, 10 + position)
    assert memory.context(table, 3) == 10 + 11 + 12
    with pytest.raises(PoisonedRead):
        memory.context(table, 5)
    memory.poison(table.block_ids[0])
    with pytest.raises(PoisonedRead):
        memory.context(table, 3)


def test_a_state_settles_only_where_it_has_been() -> None:
    state = SimState(SimMemory(2, 2))
    state.stage([11, 12, 13])
    state.trim(2)
    assert (state.num_tokens, state.state) == (2, 12)
    for unreachable in (1, 3):
        with pytest.raises(ValueError, match="cannot trim to"):
            state.trim(unreachable)


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    state = SimState(SimMemory(2, 2))
    snapshot = state.snapshot(None)
    assert snapshot is not None
    with pytest.raises(SnapshotUnusable, match="partial block"):
        state.restore(snapshot, 1)
