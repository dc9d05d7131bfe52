"""Answers of a lane as a source of drafts: who finds them, what is expected, and the bound on their memory."""

import gc
import sys
import tracemalloc
from array import array
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from octet.identity import Lane
from specialist.engines.sim.engine import CostModel, SimModel
from specialist.scheduling.copied_text import HitRates, LaneText, LaneTexts
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import DraftCount, Finished
from tests.laws.oracle import EagerProposer
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import ADAPTERS, BARE

roots = st.sampled_from([b"one", b"other"])
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(st.lists(st.tuples(roots, texts, st.integers(0, 40)), max_size=12), roots, texts, st.integers(1, 12))
def test_what_is_expected_followed_the_same_tokens_in_an_answer_of_this_root(
    ended: list[tuple[bytes, list[int], int]], root: bytes, known: list[int], most: int
) -> None:
    store = LaneTexts()
    for each, tokens, num_prompt in ended:
        store.learn(each, tokens, num_prompt)
    text = LaneText(HitRates(), store, root, num_prompt=0)
    for size in range(1, len(known) + 1):
        text.read(array("I", known[:size]))
    expected, match = list(text.expected(most)), text.match
    assert bool(expected) == bool(match)
    same = [tokens for each, tokens, _ in ended if each == root]
    places = [(tokens, end) for tokens in same for end in range(match, len(tokens))]
    assert not match or any(
        tokens[end - match : end] == known[len(known) - match :] and tokens[end : end + len(expected)] == expected
        for tokens, end in places
    )


@given(texts, texts)
def test_a_sequence_of_another_answer_is_found(answer: list[int], known: list[int]) -> None:
    store = LaneTexts()
    store.learn(b"one", answer, 0)
    text = LaneText(HitRates(), store, b"one", num_prompt=len(known))
    text.read(array("I", known))
    seen = len(known) >= 4 and any(answer[end - 4 : end] == known[-4:] for end in range(4, len(answer)))
    assert bool(text.match) == seen


def test_the_beginning_of_an_answer_is_found_by_its_prompt() -> None:
    store = LaneTexts()
    store.learn(b"one", [1, 2, 3, 4, 5, 6, 7, 8], num_prompt=5)
    text = LaneText(HitRates(), store, b"one", num_prompt=5)
    text.read(array("I", [9, 2, 3, 4, 5]))
    assert text.expected(9) == (6, 7, 8) and text.match == 4


def test_the_least_recently_used_answers_are_dropped() -> None:
    store = LaneTexts(most_bytes=30 * LaneTexts.TOKEN_BYTES)
    for number in range(3):
        store.learn(b"one", range(100 * number, 100 * number + 10), 0)
    assert store.find(b"one", array("I", [3, 4, 5, 6])) is not None  # the first answer is used
    store.learn(b"other", range(500, 510), 0)
    assert len(store) == 3 and store.num_bytes == 30 * LaneTexts.TOKEN_BYTES
    assert store.find(b"one", array("I", [103, 104, 105, 106])) is None
    assert store.find(b"one", array("I", [3, 4, 5, 6])) is not None


@given(st.lists(st.tuples(roots, texts), max_size=60))
def test_nothing_is_left_of_dropped_answers(ended: list[tuple[bytes, list[int]]]) -> None:
    store = LaneTexts(most_bytes=60 * LaneTexts.TOKEN_BYTES)
    for root, tokens in ended:
        store.learn(root, tokens, 0)
        kept = {id(answer) for answer in store._answers.values()}
        indexed = [answer for ends in store._ends.values() for answer, _ in ends.values()]
        assert {id(answer) for answer in indexed} <= kept
        assert store.num_bytes <= 60 * LaneTexts.TOKEN_BYTES
        assert all(store._ends.values())


def test_memory_stays_within_what_is_stated() -> None:
    rng, limit = Random(1), 4 << 20
    tracemalloc.start()
    try:
        store = LaneTexts(most_bytes=limit)
        for number in range(900):
            size = rng.choice((6, 20, 400))
            store.learn(b"%d" % (number % 50), [rng.randrange(50_000) for _ in range(size)], 0)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert store.num_bytes > 0.9 * limit
    assert used < limit


def test_a_long_answer_is_kept_in_part() -> None:
    store = LaneTexts()
    store.learn(b"one", range(3 * LaneTexts.MOST_TOKENS), 0)
    assert store.num_bytes == LaneTexts.MOST_TOKENS * LaneTexts.TOKEN_BYTES


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(ADAPTERS), st.sampled_from([b"", b"a", b"b"]), st.integers(0, 2)),
        min_size=2,
        max_size=12,
    ),
    st.booleans(),
    st.sampled_from([9, 20, 64]),
    st.sampled_from([5, 64]),
    st.booleans(),
)
def test_drafts_from_other_answers_change_none(
    asked: list[tuple[int, tuple[str, ...], bytes, int]], hybrid: bool, num_blocks: int, chunk: int, eager: bool
) -> None:
    """The same few prompts are asked again and again, under every adapter stack and tenant salt, in two waves."""
    model, store = SimModel(hybrid=hybrid), LaneTexts()
    proposer = EagerProposer(store) if eager else DraftProposer(store)
    replica = Replica(Shape(num_blocks=num_blocks, hybrid=hybrid, chunk_tokens=chunk), proposer=proposer, model=model)
    requests = [
        Request(
            f"r{i}", Lane(BARE.specialist, BARE.revision, stack), (prompt, 7, 8, 9), 14, priority,
            stop_ids=frozenset({3}), draft_window=4, tenant_salt=salt,
        )
        for i, (prompt, stack, salt, priority) in enumerate(asked * 2)
    ]  # fmt: skip
    replica.run(requests[: len(asked)])
    assert replica.run(requests[len(asked) :]) == {each.request_id: model.answer(each) for each in requests}
    assert replica.pool.num_free == replica.pool.capacity
    assert not proposer._copied, "ended requests are forgotten"


def test_a_repeated_request_takes_few_steps() -> None:
    cost = CostModel(decode_token=1e-5)
    replica = Replica(Shape(chunk_tokens=64, num_blocks=256), proposer=DraftProposer(LaneTexts()), cost=cost)
    for salt, num_likely in ((b"", 0), (b"", 60), (b"other tenant", 0)):
        before = replica.scheduler.num_steps
        replica.run([Request(f"r{before}", BARE, (1, 2, 3, 4, 5), 90, tenant_salt=salt, draft_window=16)])
        end = replica.events[-1]
        assert isinstance(end, Finished)
        assert end.num_accepted >= num_likely and bool(end.num_drafted) == bool(num_likely)
        assert all(count == DraftCount("lane", count.num_drafted, count.num_accepted) for count in end.drafts)


def test_a_table_that_was_full_once_becomes_small_again() -> None:
    random, texts = Random(2), LaneTexts(30_000 * LaneTexts.TOKEN_BYTES)
    for root in (b"first", b"second"):
        for _ in range(40):
            texts.learn(root, [random.randrange(50_000) for _ in range(1_000)], 0)
            texts.learn(b"first", list(range(100)), 0)  # in use all the time
    tables = {root: sys.getsizeof(table) for root, table in texts._ends.items()}
    assert tables[b"first"] < tables[b"second"] / 20
