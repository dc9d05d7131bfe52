"""Guesses copied from a request's own text: what is expected next, how many are checked, and that no answer changes."""

from collections.abc import Mapping
from collections.abc import Sequence as ListLike
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.bookings import Admit, BookedRequest
from admission.forecast.simulated_pool import SimulatedRequest
from kvpool import BlockPool
from specialist.engines.sim.engine import CostModel, SimModel
from specialist.scheduling.copied_text import HitRates, OwnText
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.loop import ReplicaCore, make_booking
from specialist.scheduling.sequence import Request, Sequence
from specialist.scheduling.step import Finished, RowBuilder
from specialist.scheduling.step_cost import StepCost
from tests.laws.oracle import EagerProposer
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import BARE
from tests.specialist.builders import make_sequence

texts = st.lists(st.integers(0, 3), max_size=60)


def read(prompt: ListLike[int], answer: ListLike[int]) -> OwnText:
    text = OwnText(HitRates())
    text.extend(prompt, is_prompt=True)
    for token in answer:
        text.extend([token])
    return text


@given(texts, texts, st.integers(1, 20))
def test_what_is_expected_followed_the_same_tokens_before(prompt: list[int], answer: list[int], most: int) -> None:
    known, text = prompt + answer, read(prompt, answer)
    expected = text.expected(most)
    if not text.match:
        assert expected == ()
        return
    places = [
        end
        for end in range(text.match, len(known))
        if known[end - text.match : end] == known[len(known) - text.match :]
    ]
    copies = [[*known[end:], *expected][:most] for end in places]
    assert list(expected) in copies, "it continues an earlier occurrence, over its own end if necessary"


@given(texts, texts)
def test_a_sequence_that_occurred_before_is_found(prompt: list[int], answer: list[int]) -> None:
    known = prompt + answer
    seen = any(known[end - 3 : end] == known[-3:] for end in range(3, len(known)))
    assert not seen or read(prompt, answer).match >= 2


@given(texts, texts, st.integers(0, 60))
def test_the_index_does_not_depend_on_how_tokens_arrive(prompt: list[int], answer: list[int], at: int) -> None:
    one, parts = read(prompt, answer), OwnText(HitRates())
    parts.extend(prompt, is_prompt=True)
    parts.extend(answer[:at])
    parts.extend(answer[at:])
    assert (one.match, one.expected(9)) == (parts.match, parts.expected(9))


def test_an_edited_copy_goes_on_after_the_edit() -> None:
    """The text ends as its fourth line does; line two was changed."""
    lines = [[10, 11, 12, 13, 14], [20, 21, 22, 23, 14], [30, 31, 32, 33, 14], [40, 21, 22, 23, 14]]
    prompt = [token for line in lines for token in line]
    text = read([*prompt, 99], [*lines[0], 20, 77, 22, 23])
    assert text.expected(4) == (14, 30, 31, 32), "the copy goes on in line two, not in line four"


def test_likelihoods_follow_what_was_right() -> None:
    good, bad = read([], [1, 2, 3, 4, 5] * 20), read([], [0])
    rng = Random(3)
    bad.extend([rng.randrange(3) for _ in range(300)])
    assert good.rate(0) > 0.9 and bad.rate(0) < 0.6
    assert good.expected(7) == (1, 2, 3, 4, 5, 1, 2)


def test_no_caller_can_choose_tokens_that_slow_the_index_down() -> None:
    """These triples would have the same hash if they were hashed as one number. Bytes are hashed with a secret."""
    hostile = [token for a in range(2000) for token in (a, 2**20 - 8 * a, 7)]
    text = read(hostile, [])
    assert len({hash(key) for key in text._ends}) > 0.99 * len(text._ends)


def test_a_long_prompt_is_read_in_parts() -> None:
    replica = Replica(Shape(num_blocks=4096, chunk_tokens=64), proposer=EagerProposer(), model=SimModel(vocab_size=1))
    replica.scheduler.submit(Request("r", BARE, (0,) * 9000, 30, draft_window=8))
    seq, sizes = replica.scheduler.ledger.live["r"], []
    while replica.loop.run_once() is not None:
        if seq.own_text is not None:
            sizes.append(len(seq.own_text))
    assert sizes[:2] == [4096, 8192] and sizes[2] > 9000 and seq.num_accepted > 15


def times(cost: StepCost, first: int, last: int) -> list[float]:
    return [round(time, 6) for time in cost.times(first, last)]


def learned(*steps: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for num_tokens, seconds in steps:
        for _ in range(20):
            cost.learn(num_tokens, seconds)
    return cost


def test_times_are_interpolated_between_measured_steps_and_end_with_them() -> None:
    assert times(learned(), 1, 4) == []
    assert times(learned((1, 1.0)), 1, 4) == [1.0]
    assert times(learned((1, 1.0)), 2, 4) == [], "nothing so large was measured"
    assert times(learned((1, 1.0), (5, 3.0)), 1, 8) == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert times(learned((1, 1.0), (5, 3.0)), 3, 4) == [2.0, 2.5]
    large = times(learned((1, 1.0), (5, 3.0), (20, 9.0)), 5, 30)
    assert large == [3.0] + [9.0] * 19, "large steps are computed in tiles"


def test_a_size_that_was_measured_once_is_doubted() -> None:
    cost = learned((1, 1.0))
    cost.learn(5, 2.0)
    assert times(cost, 5, 5) == [3.0]
    for _ in range(20):
        cost.learn(5, 2.0)
    assert times(cost, 5, 5) == [2.0]


@pytest.mark.parametrize("num_rows", range(1, 41))
def test_plain_steps_of_any_size_are_enough_to_try_drafts(num_rows: int) -> None:
    cost = StepCost()
    for _ in range(200):
        cost.learn(num_rows, 1.0)
    cost.learn(num_rows, 0.0)  # a clock that stood still says nothing
    assert times(cost, num_rows, num_rows + 64)[:1] == [1.0]


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0.001, 5.0)), max_size=300), st.integers(1, 40))
def test_times_never_fall_as_steps_grow(steps: list[tuple[int, float]], first: int) -> None:
    cost = StepCost()
    for num_tokens, seconds in steps:
        cost.learn(num_tokens, seconds)
    found = cost.times(first, first + 50)
    assert found == sorted(found) and all(time > 0 for time in found)


def test_a_slower_machine_changes_no_ratio_and_old_steps_are_forgotten() -> None:
    cost = StepCost()
    for _ in range(30):
        cost.learn(1, 1.0)
        cost.learn(5, 2.0)
    for _ in range(100):
        cost.learn(1, 3.0)
    assert 1.5 < times(cost, 1, 5)[4] / times(cost, 1, 5)[0] < 2.4
    for _ in range(100):
        cost.learn(1, 3.0)
    assert len(cost.times(1, 5)) == 1


class TwoFacedModel(SimModel):
    """A model that always says the same with a seed, and never without."""

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        drawn = super().sample(context, state, seed, position, allowed)
        return 0 if seed else drawn


requests_of_few_tokens = st.lists(
    st.builds(
        lambda prompt, most, window, priority: (tuple(prompt), most, window, priority),
        st.lists(st.integers(0, 2), min_size=1, max_size=12),
        st.integers(1, 30),
        st.sampled_from([0, 3, 8]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=5,
)


def _within(model: SimModel, tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token % model.vocab_size for token in tokens)


@settings(max_examples=100, deadline=None)
@given(
    requests_of_few_tokens,
    st.booleans(),
    st.booleans(),
    st.sampled_from([12, 20, 64]),
    st.sampled_from([5, 16, 64]),
    st.booleans(),
    st.booleans(),
)
def test_copied_drafts_change_no_answer(
    asked: list[tuple[tuple[int, ...], int, int, int]],
    eager: bool,
    hybrid: bool,
    num_blocks: int,
    chunk_tokens: int,
    prefix_cache: bool,
    may_stop: bool,
) -> None:
    """With two or three tokens, a text often repeats itself and then goes on differently, or stops."""
    model, stop_ids = SimModel(vocab_size=3 if may_stop else 2, hybrid=hybrid), frozenset({2})
    shape = Shape(num_blocks=num_blocks, hybrid=hybrid, chunk_tokens=chunk_tokens, prefix_cache=prefix_cache)
    replica = Replica(shape, proposer=EagerProposer() if eager else DraftProposer(), model=model)
    requests = [
        Request(f"r{i}", BARE, _within(model, prompt), most, priority, stop_ids=stop_ids, draft_window=window)
        for i, (prompt, most, window, priority) in enumerate(asked)
    ]
    num_rows = dict.fromkeys((each.request_id for each in requests), 0)  # that sampled tokens
    for request in requests:
        replica.scheduler.submit(request)
    while (step := replica.loop.run_once()) is not None:
        for row in step.rows:
            seq = row.sequence
            num_rows[seq.request.request_id] += row.num_samples > 0
            assert row.num_drafts <= seq.draft_window and row.stop < seq.max_total_tokens
            if seq.own_text is not None and row.num_drafts:
                known = list(seq.chain.view())
                assert list(seq.own_text._text) == known[: len(seq.own_text)] == known[: row.stop - row.num_drafts]
    replica.events += replica.scheduler.take_events()
    assert replica.answers() == {each.request_id: model.answer(each) for each in requests}
    assert replica.pool.num_free == replica.pool.capacity
    for end in (event for event in replica.events if isinstance(event, Finished)):
        assert 0 <= end.num_accepted <= end.num_drafted
        num_sampled = num_rows[end.request_id] + end.num_accepted
        assert num_sampled - len(replica.answers()[end.request_id]) in ((0, 1) if end.reason == "stop" else (0,))


@pytest.mark.parametrize("window", [0, 8])
def test_drafts_that_are_right_save_steps(window: int) -> None:
    model = SimModel(vocab_size=1)
    replica = Replica(Shape(chunk_tokens=64), proposer=DraftProposer(), model=model)
    request = Request("r", BARE, (0,) * 8, 60, draft_window=window)
    assert replica.run([request]) == {"r": model.answer(request)}
    (end,) = [event for event in replica.events if isinstance(event, Finished)]
    assert replica.scheduler.num_steps < 25 if window else replica.scheduler.num_steps >= 60
    assert (end.num_accepted > 40) == bool(window)


def test_a_step_computes_no_more_tokens_than_the_engine_can() -> None:
    model = SimModel(vocab_size=1)
    replica = Replica(Shape(chunk_tokens=10, num_blocks=128), proposer=EagerProposer(), model=model)
    for i in range(4):
        replica.scheduler.submit(Request(f"r{i}", BARE, (0,) * 8, 30, draft_window=8))
    while (step := replica.loop.run_once()) is not None:
        assert step.num_tokens <= 10
    replica.events += replica.scheduler.take_events()
    assert set(replica.answers().values()) == {(0,) * 30}


def test_drafts_that_do_not_pay_are_not_checked() -> None:
    """Each token costs as much as a step."""
    proposer, num_rows = DraftProposer(), 4
    for _ in range(50):
        for num_tokens in (4, 8, 12):
            proposer.observe(num_tokens, 0.01 * num_tokens)
    replica = Replica(Shape(chunk_tokens=64), proposer=proposer, model=SimModel(vocab_size=1))
    seqs = []
    for i in range(num_rows):
        replica.scheduler.submit(Request(f"r{i}", BARE, (0,) * 8, 30, draft_window=8))
        seqs.append(replica.scheduler.ledger.live[f"r{i}"])
    assert proposer.propose(dict.fromkeys(seqs, 8), num_rows, 64) == {}
    for _ in range(50):
        for num_tokens in (4, 8, 12):
            proposer.observe(num_tokens, 0.01)
    found = proposer.propose(dict.fromkeys(seqs, 8), num_rows, 64)
    assert sum(map(len, found.values())) >= 8


def test_forecasts_know_that_guesses_save_steps() -> None:
    cost = replace(CostModel(), decode_token=1e-5)
    replica = Replica(Shape(chunk_tokens=64), proposer=DraftProposer(), model=SimModel(vocab_size=1), cost=cost)
    core, errors = ReplicaCore(replica.scheduler, replica.engine), list[float]()
    for i in range(40):
        began = core.clock.now()
        decision = core.submit(Request(f"r{i}", BARE, (0,) * 8, 60, arrival=began, draft_window=8))
        while core.step() is not None:
            pass
        took = core.clock.now() - began
        if isinstance(decision, Admit) and decision.outlook is not None:
            errors.append(abs(decision.outlook.total - took) / took)
    assert replica.scheduler.num_steps < 40 * 30, "guesses save steps"
    assert max(errors[-10:]) < 0.25


def test_deadlines_do_not_count_on_drafts() -> None:
    """One request that repeats itself makes steps keep several tokens. Those that come next repeat nothing."""
    cost = CostModel(decode_step=0.03, decode_token=1e-5)
    proposer, model = DraftProposer(), TwoFacedModel()
    replica = Replica(Shape(chunk_tokens=64, num_blocks=512, max_running=16), proposer=proposer, model=model, cost=cost)
    core = ReplicaCore(replica.scheduler, replica.engine)
    for i in range(3):
        core.submit(Request(f"repeats {i}", BARE, (0,) * 8, 200, seed=1, draft_window=8))
        while core.step() is not None:
            pass
    assert core.controller.estimator.stated_prices is not None, "drafts save steps"
    now = core.clock.now()
    for i in range(16):
        asked = Request(f"r{i}", BARE, (5 + i, 60, 70), 60, arrival=now, deadline=now + 1.5, draft_window=8)
        core.submit(asked)
    while core.step() is not None:
        pass
    assert "deadline" not in [event.reason for event in core.take_events() if isinstance(event, Finished)]


def test_a_suspect_checks_no_drafts() -> None:
    """It runs alone, so that the cause of a failed step is found."""
    replica = Replica(Shape(chunk_tokens=64), proposer=EagerProposer(), model=SimModel(vocab_size=1))
    replica.scheduler.submit(Request("r", BARE, (0,) * 8, 30, draft_window=8))
    seq = replica.scheduler.ledger.live["r"]
    assert len(replica.scheduler.rows.drafts([seq])[seq]) == 8
    seq.suspect = True
    assert replica.scheduler.rows.drafts([seq]) == {}


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
@pytest.mark.parametrize("drafts", [(), (8, 9)])
def test_a_row_has_its_drafts_after_any_number_of_known_tokens(num_tokens: int, drafts: tuple[int, ...]) -> None:
    pool, seq = BlockPool(8, 4), make_sequence(0, prompt=(1, 2, 3))
    seq.table, seq.num_computed = pool.apply(pool.admit(seq.chain, 4)), 3 - num_tokens
    row = RowBuilder(pool, None, 64).row(seq, num_tokens, drafts)
    assert (*row.tokens,) == ((1, 2, 3)[3 - num_tokens :] + drafts)
    assert (row.num_drafts, row.num_samples, seq.num_scheduled) == (len(drafts), 1 + len(drafts), len(row.tokens))
    assert len(row.table.block_ids) * 4 >= row.stop


class StoppingModel(SimModel):
    """A model that says 0, and from position 12 on only its stop token."""

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        return 9 if position >= 12 else 0


class KnowingProposer(EagerProposer):
    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: tuple(9 if seq.num_tokens + i >= 12 else 0 for i in range(most)) for seq, most in limits.items()}


def test_drafts_beyond_the_end_of_an_answer_are_not_accepted() -> None:
    replica = Replica(Shape(chunk_tokens=64), proposer=KnowingProposer(), model=StoppingModel())
    request = Request("r", BARE, (0,) * 8, 30, stop_ids=frozenset({9}), draft_window=8)
    assert replica.run([request]) == {"r": (0,) * 4}
    (end,) = [event for event in replica.events if isinstance(event, Finished)]
    assert (end.reason, end.num_drafted, end.num_accepted) == ("stop", 8, 3)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 64))
def test_the_forecast_keeps_the_room_that_the_scheduler_keeps(num_prompt: int, most: int, window: int) -> None:
    replica = Replica(Shape(), proposer=DraftProposer(), model=SimModel())
    request = Request("r", BARE, (1,) * num_prompt, most, draft_window=window)
    replica.scheduler.submit(request)
    seq, booked = replica.scheduler.ledger.live["r"], BookedRequest(make_booking(request), 1)
    assert SimulatedRequest(booked).entry_slots == seq.reserve - seq.num_tokens
