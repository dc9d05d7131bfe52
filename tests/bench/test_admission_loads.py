from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import mean, median, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.admission.load import (
    ArrivalClock,
    Mix,
    Offer,
    ReplicaSetup,
    Source,
    drawn,
    fitted,
    lone_seconds,
    offers,
    recorded,
    step_loop,
)
from simulation.traces import LengthShape, TraceError, read_azure
from specialist.engines.sim.engine import CostModel

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TRACE = [LengthShape(1.0, 100, 10), LengthShape(0.0, 3, 5), LengthShape(2.0, 900, 400)]
SOURCES = {"drawn": drawn(1024), "recorded": recorded(TRACE)}


@pytest.fixture
def azure(shared_data: Path) -> Path:
    path = shared_data / "azure" / "AzureLLMInferenceTrace_code.csv"
    if not path.is_file():
        pytest.skip(f"no trace at {path}")
    return path


def coefficient_of_variation(gaps: list[float]) -> float:
    return pstdev(gaps) / mean(gaps)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@given(seed=st.integers(0, 2**32), rate=st.floats(0.1, 30), seconds=st.floats(1, 60))
def test_load_fills_its_time_with_the_requested_work(source: Source, seed: int, rate: float, seconds: float) -> None:
    load = offers(source, Mix(), CostModel(), seconds, rate, seed)
    assert [offer.number for offer in load] == list(range(len(load)))
    assert all(before.at <= after.at for before, after in pairwise(load))
    assert load[0].at >= 0 and load[-1].at <= seconds
    wanted, last = seconds * rate, load[-1].work
    assert wanted <= sum(offer.work for offer in load) + 1e-9
    assert sum(offer.work for offer in load) - last < wanted


@given(seed=st.integers(0, 2**32))
def test_equal_seeds_give_equal_loads_and_other_seeds_do_not(seed: int) -> None:
    def load(seed: int) -> object:
        return offers(drawn(1024), Mix(early=0.3), CostModel(), 5, 4, seed)

    assert load(seed) == load(seed)
    assert load(seed) != load(seed + 1)


def test_a_drawn_load_is_poisson_and_its_lengths_are_skewed() -> None:
    shapes = list(islice(drawn(1024)(Random(1)), 20_000))
    gaps = [shape.gap for shape in shapes]
    assert mean(gaps) == pytest.approx(1, rel=0.03)
    assert coefficient_of_variation(gaps) == pytest.approx(1, rel=0.03)
    for lengths in ([shape.prompt_tokens for shape in shapes], [shape.answer_tokens for shape in shapes]):
        assert min(lengths) >= 1
        assert max(lengths) > 7 * median(lengths)
        assert max(lengths) <= 512
        assert mean(lengths) > 1.2 * median(lengths)


def test_classes_and_deadlines_have_their_shares() -> None:
    mix = Mix(least_patience=0.0, early=0.25)
    load = offers(drawn(1024), mix, CostModel(), 100, 40, seed=3)
    by_class = Counter(offer.priority for offer in load)
    by_patience = Counter(round(offer.patience / offer.work, 3) for offer in load)
    for counts, shares in ((by_class, mix.classes), (by_patience, mix.deadlines)):
        assert {value: count / len(load) for value, count in counts.items()} == {
            value: pytest.approx(share, abs=0.02) for value, share in shares
        }
    assert mean(not offer.exact for offer in load) == pytest.approx(0.25 * 0.97, abs=0.03)
    assert all(offer.answer_tokens <= offer.max_tokens <= 4 * offer.answer_tokens for offer in load)


@given(prompt=st.integers(2, 300), answer=st.integers(1, 30))
def test_lone_work_equals_the_time_of_an_idle_replica(prompt: int, answer: int) -> None:
    """`lone_seconds` assumes that one step computes the whole prompt. If the scheduler has a `hold`, a step computes at
    most two chunks, so a long prompt takes up to 25 % longer."""
    setup = ReplicaSetup(noise=0.0, stalls=0.0)
    load = offers(recorded([LengthShape(1.0, prompt, answer)]), Mix(), setup.cost, 1.0, 1e-6, seed=1)
    taken = {}
    for reserves in (False, True):
        clock = ArrivalClock()
        loop = step_loop(setup, clock, seed=1)
        if not reserves:
            loop.scheduler.hold = None
        loop.scheduler.submit(replace(load[0].request(), deadline=None))
        while loop.run_once() is not None:
            pass
        taken[reserves] = clock.now()
    assert taken[False] == pytest.approx(load[0].work)
    assert load[0].work == lone_seconds(setup.cost, prompt, answer)
    assert load[0].work - 1e-9 <= taken[True] <= 1.25 * load[0].work


def test_arrivals_are_submitted_at_their_time_during_a_long_sleep() -> None:
    submitted: list[tuple[int, float]] = []
    load = [Offer(number, at, 1, 1, 1, 1, 1.0, 1.0) for number, at in enumerate((1.0, 2.0, 2.0, 2.6, 3.0))]
    clock = ArrivalClock(load, lambda offer: submitted.append((offer.number, clock.now())))
    assert clock.next_at == 1.0
    clock.sleep(2.5)
    assert submitted == [(0, 1.0), (1, 2.0), (2, 2.0)]
    assert clock.now() == 2.5
    assert clock.next_at == 2.6
    clock.sleep(0.0)
    clock.drop_arrivals(lambda offer: offer.number == 4)
    clock.sleep(10.0)
    assert submitted[3:] == [(3, 2.6)]
    assert clock.now() == 12.5
    assert clock.next_at is None


def test_a_trace_is_read_as_gaps_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        f"{HEADER}2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.2299600,3,0\r\n"
        "2023-11-16 18:17:04.4799600,7,8\r\n"
    )
    assert read_azure(path) == [LengthShape(0.25, 4808, 10), LengthShape(0.25, 3, 0), LengthShape(0.25, 7, 8)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2023-11-16 18:17:03,1", "expected 3 columns, got 2"),
        ("yesterday,1,1", "yesterday"),
        ("2023-11-16 18:17:03,0,1", "at least 1, got '0'"),
        ("2023-11-16 18:17:03,-1,1", "at least 1, got '-1'"),
        ("2023-11-16 18:17:03,1,1.5", "at least 0, got '1.5'"),
        ("2023-11-16 18:17:01,1,1", "earlier than on the previous line"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}2023-11-16 18:17:02,1,1\n{line}\n")
    with pytest.raises(TraceError, match=f"trace.csv, line 3: .*{why}"):
        read_azure(path)


@pytest.mark.parametrize("text", ["", "a,b,c\n", HEADER, f"{HEADER}2023-11-16 18:17:02,1,1\n"])
def test_file_without_a_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match="line 1"):
        read_azure(path)


@given(
    trace=st.lists(
        st.builds(LengthShape, st.floats(0, 10), st.integers(1, 100_000), st.integers(0, 5_000)),
        min_size=1,
        max_size=20,
    ),
    context=st.integers(8, 8192),
)
def test_fitted_requests_fit_and_keep_their_order_of_length(trace: list[LengthShape], context: int) -> None:
    fit = fitted(trace, context)
    for before, after in zip(trace, fit, strict=True):
        assert after.gap == before.gap
        assert 1 <= after.prompt_tokens <= before.prompt_tokens
        assert 1 <= after.answer_tokens <= context - after.prompt_tokens
    order = sorted(range(len(trace)), key=lambda i: trace[i].prompt_tokens)
    assert all(fit[a].prompt_tokens <= fit[b].prompt_tokens for a, b in pairwise(order))


def test_compressed_trace_keeps_its_burstiness() -> None:
    load = offers(recorded(TRACE * 50), Mix(), CostModel(), 10, 20, seed=1)
    gaps = [after.at - before.at for before, after in pairwise(load)]
    shapes = [shape.gap for shape in TRACE * 50]
    assert coefficient_of_variation(gaps) == pytest.approx(coefficient_of_variation(shapes), rel=0.1)


def test_azure_trace_matches_its_publication(azure: Path) -> None:
    trace = read_azure(azure)
    assert len(trace) == 8819
    assert sum(shape.gap for shape in trace[1:]) == pytest.approx(57 * 60, rel=0.01)
    assert coefficient_of_variation([shape.gap for shape in trace[1:]]) == pytest.approx(13.1, abs=0.1)
    assert median(shape.prompt_tokens for shape in trace) == pytest.approx(1469, abs=50)
    assert median(shape.answer_tokens for shape in trace) == 13
    load = offers(recorded(fitted(trace, 1024)), Mix(), CostModel(), 60, 10, seed=1)
    assert coefficient_of_variation([after.at - before.at for before, after in pairwise(load)]) > 3
