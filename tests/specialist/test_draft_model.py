"""A smaller model that guesses: it changes no answer, its memory follows the sequences, and it runs where it pays."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.identity import Lane
from specialist.engines.base import Completion, EngineFault
from specialist.engines.sim.engine import CostModel, InjectedFault, SimModel
from specialist.scheduling.copied_text import LaneTexts
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Finished, Step, StepOutcome
from tests.laws.oracle import EagerProposer
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import ADAPTERS, BARE
from tests.laws.small_model import SmallModel, small_model

CHEAP = CostModel(decode_token=1e-5)
"""Of the model: a step takes the same time with and without drafts."""

asked = st.lists(
    st.tuples(
        st.lists(st.integers(1, 96), min_size=1, max_size=12),
        st.sampled_from(ADAPTERS[:2]),
        st.sampled_from([b"", b"a"]),
        st.integers(0, 2),  # priority
        st.integers(1, 24),  # most tokens
        st.sampled_from([0, 1, 4, 9]),  # window
    ),
    min_size=1,
    max_size=6,
)


def requests_of(drawn: list[tuple[list[int], tuple[str, ...], bytes, int, int, int]]) -> list[Request]:
    return [
        Request(
            f"r{i}", Lane(BARE.specialist, BARE.revision, stack), tuple(prompt), most, priority,
            stop_ids=frozenset({3}), seed=i % 2, draft_window=window, tenant_salt=salt,
        )
        for i, (prompt, stack, salt, priority, most, window) in enumerate(drawn)
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    asked,
    st.booleans(),
    st.sampled_from([10, 12, 64]),
    st.sampled_from([5, 64]),
    st.sampled_from([3, 8, 64]),
    st.sampled_from([1, 2, 7]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_draft_model_changes_no_answer(
    drawn: list[tuple[list[int], tuple[str, ...], bytes, int, int, int]],
    hybrid: bool,
    num_blocks: int,
    chunk: int,
    own_blocks: int,
    errs: int,
    eager: bool,
    lane: bool,
    prefix_cache: bool,
) -> None:
    model = SimModel(hybrid=hybrid)
    replica = Replica(
        Shape(num_blocks=num_blocks, hybrid=hybrid, chunk_tokens=chunk, prefix_cache=prefix_cache), model=model
    )
    drafts = small_model(SimModel(), replica.clock, num_blocks=own_blocks, errs=errs, prefix_cache=prefix_cache)
    texts = LaneTexts() if lane else None
    proposer = EagerProposer(texts, drafts) if eager else DraftProposer(texts, drafts)
    replica.propose(proposer)
    requests = requests_of(drawn)
    for request in requests:
        replica.scheduler.submit(request)
    while replica.loop.run_once() is not None:
        drafts.pool.check()
        assert drafts.pool.num_used <= own_blocks - 1
    replica.events += replica.scheduler.take_events()
    assert replica.answers() == {each.request_id: model.answer(each) for each in requests}
    assert not drafts.sequences and drafts.pool.num_free == drafts.pool.capacity, "it forgets what has ended"
    assert replica.scheduler.rows.num_failed_proposals == proposer.num_failed == 0


def drafting(model: SimModel, cost: CostModel, own: CostModel, errs: int = 10**9) -> tuple[Replica, DraftProposer]:
    """Return a replica whose draft model has this cost."""
    replica = Replica(Shape(num_blocks=1024, chunk_tokens=256, max_running=16), model=model, cost=cost)
    proposer = DraftProposer(
        None, small_model(model, replica.clock, num_blocks=1024, errs=errs, cost=own, max_step_tokens=256)
    )
    replica.propose(proposer)
    return replica, proposer


def ends_of(replica: Replica) -> list[Finished]:
    return [event for event in replica.events if isinstance(event, Finished)]


def test_a_model_that_is_right_saves_steps() -> None:
    model = SimModel()
    replica, _ = drafting(model, CHEAP, CostModel(1e-4, 1e-5, 0.0, 2e-4, 1e-5, 0.0))
    request = Request("r", BARE, tuple(range(1, 60)), 300, draft_window=16)
    assert replica.run([request]) == {"r": model.answer(request)}
    (end,) = ends_of(replica)
    assert replica.scheduler.num_steps < 130
    assert end.num_accepted == end.num_drafted > 200
    assert {count.source for count in end.drafts} == {"model"}


@pytest.mark.parametrize("num_requests", [1, 3, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("own", "errs"), [(CostModel(2e-3, 1e-4, 0.0, 4e-3, 1e-5, 0.0), 10**9), (CHEAP, 1)])
def test_a_model_that_does_not_pay_is_hardly_asked(num_requests: int, own: CostModel, errs: int) -> None:
    """Either it takes as long as the model, or it is never right. The time lost on trials stays below 3 %."""
    seconds = {}
    for window in (0, 8):
        replica, _ = drafting(SimModel(), CHEAP, own, errs)
        requests = [Request(f"r{i}", BARE, (1, 2, 3 + i), 1500, draft_window=window) for i in range(num_requests)]
        replica.run(requests)
        seconds[window] = replica.clock.now()
    assert seconds[0] / seconds[8] > 0.97


def test_step_times_of_the_model_leave_out_those_of_the_draft_model() -> None:
    replica, proposer = drafting(SimModel(), CHEAP, CostModel(2e-3, 1e-4, 0.0, 1e-3, 1e-5, 0.0))
    replica.run([Request("r", BARE, (1, 2, 3), 400, draft_window=8)])
    time, _, _ = proposer._cost._points[1]
    assert time * proposer._cost.pace == pytest.approx(CHEAP.decode_step, rel=0.1)


def test_a_long_text_is_read_in_chunks_and_shared_beginnings_once() -> None:
    replica, proposer = drafting(SimModel(), CHEAP, CostModel(1e-4, 1e-5, 0.0, 2e-4, 1e-5, 0.0))
    assert proposer.model is not None
    sizes: list[int] = []
    model = proposer.model.model
    run = model._engine.run

    def watched(step: Step) -> object:
        sizes.append(step.num_tokens)
        return run(step)

    model._engine.run = watched  # type: ignore[assignment, method-assign]
    replica.run([Request("first", BARE, tuple(range(1000)), 300, draft_window=8)])
    assert max(sizes) == 128 and sum(size for size in sizes if size > 32) >= 990
    sizes.clear()
    replica.run([Request("second", BARE, (*range(1000), 5, 6), 300, draft_window=8)])
    assert max(sizes) <= 32, "the cached beginning is not read again"


@pytest.mark.parametrize("kind", ["raises", "fails", "late", "short", "rows"])
def test_a_draft_model_that_fails_costs_only_its_drafts(kind: str) -> None:
    model = SimModel()
    replica, proposer = drafting(model, CHEAP, CostModel(1e-4, 1e-5, 0.0, 2e-4, 1e-5, 0.0))
    assert proposer.model is not None
    engine = proposer.model.model._engine
    run = engine.run

    def broken(step: Step) -> object:
        match kind:
            case "raises":
                raise RuntimeError("device lost")
            case "fails":
                raise EngineFault("no", "r")
            case "late":
                return []
        sampled = () if kind == "short" else ((1, 2, 3),)
        return [Completion(step, StepOutcome(sampled))]

    engine.run = broken  # type: ignore[assignment, method-assign]
    requests = [Request(f"r{i}", BARE, (1, 2, 3 + i), 200, draft_window=8) for i in range(2)]
    assert replica.run(requests) == {each.request_id: model.answer(each) for each in requests}
    assert 1 <= proposer.num_failed < 12, "it is asked less and less often"
    assert not proposer.model.model.sequences
    engine.run = run  # type: ignore[method-assign]
    again = [replace(each, request_id=f"again {each.request_id}", max_tokens=6000 // 2) for each in requests]
    replica.run(again)
    assert any(end.num_drafted for end in ends_of(replica)), "it is asked again, and then works"


def test_a_draft_model_with_injected_faults_changes_no_answer() -> None:
    kinds = iter(["fail_before", "fail_after", "late", "duplicate", "fail_row"] * 1000)

    def faults(step: Step) -> InjectedFault | None:
        return InjectedFault(next(kinds)) if step.number % 3 == 0 else None  # type: ignore[arg-type]

    model = SimModel()
    replica = Replica(Shape(num_blocks=64), model=model)
    proposer = EagerProposer(None, small_model(model, replica.clock, faults=faults))
    replica.propose(proposer)
    requests = [Request(f"r{i}", BARE, (1, 2, 3 + i), 40, draft_window=4) for i in range(4)]
    assert replica.run(requests) == {each.request_id: model.answer(each) for each in requests}
    assert any(end.num_accepted for end in ends_of(replica))


def test_a_full_memory_forgets_the_least_recently_used() -> None:
    model = SimModel()
    replica = Replica(Shape(num_blocks=256, max_running=8), model=model)
    drafts = small_model(model, replica.clock, num_blocks=9, errs=10**9)
    replica.propose(EagerProposer(None, drafts))
    requests = [Request(f"r{i}", BARE, (1 + i, 2, 3), 40, draft_window=3) for i in range(8)]
    assert replica.run(requests) == {each.request_id: model.answer(each) for each in requests}
    assert sum(end.num_accepted for end in ends_of(replica)) > 10


@pytest.mark.parametrize("num_good", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_model_that_paid_for_long_and_then_errs_costs_little(num_good: int) -> None:
    """What trials may cost does not add up while the model pays."""
    own, errs, seconds = CostModel(1e-3, 1e-4, 0.0, 2e-3, 1e-5, 0.0), SimModel(), {}
    for window in (0, 16):
        replica, proposer = drafting(SimModel(), CHEAP, own)
        replica.run([Request(f"good {i}", BARE, (1, 2, 3 + i), 3000, draft_window=window) for i in range(num_good)])
        model = proposer.model
        assert model is not None
        model.model._engine.model = SmallModel(errs.vocab_size, errs=1)  # type: ignore[attr-defined]
        replica.run([Request("settles", BARE, (7, 2, 3), 300, draft_window=window)])
        before = replica.clock.now()
        replica.run([Request("bad", BARE, (7, 2, 4), 1500, draft_window=window)])
        seconds[window] = replica.clock.now() - before
    assert seconds[0] / seconds[16] > 0.95
