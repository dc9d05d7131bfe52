"""Figures computed from the arrival times of tokens, and records made from figures."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine_decode import FULL, DecodeJob, compute_figures, decode_jobs, decode_rate, prefill_job, prefix_prompts
from bench.timing import Board, Figure, FigureKey


def lockstep(concurrency: int, num_tokens: int, ttft: float, itl: float) -> list[list[float]]:
    return [[ttft + itl * i for i in range(num_tokens)] for _ in range(concurrency)]


@given(st.integers(1, 8), st.integers(2, 9), st.floats(0.01, 2), st.floats(0.001, 0.5))
def test_decode_rate_in_lockstep_is_sequences_over_step_time(
    concurrency: int, num_tokens: int, ttft: float, itl: float
) -> None:
    assert decode_rate(lockstep(concurrency, num_tokens, ttft, itl)) == pytest.approx(concurrency / itl)


def test_only_time_in_which_all_sequences_decode_counts() -> None:
    early, late = [1.0, 2.0, 3.0, 4.0, 5.0], [3.5, 4.5, 5.5, 6.5, 7.5]
    assert decode_rate([early, late]) == pytest.approx(3 / 1.5)
    with pytest.raises(ValueError, match="never decoded together"):
        decode_rate([[1.0, 2.0], [3.0, 4.0]])


def test_figures_of_a_decode_job() -> None:
    job = DecodeJob("4 sequences", 4, 32, 5)
    times = [[ttft, ttft + 0.1, ttft + 0.2, ttft + 0.3, ttft + 0.5] for ttft in (0.1, 0.1, 0.1, 0.3)]
    figures = {figure.metric: figure for figure in compute_figures(job, times)}
    assert figures["TTFT p50"].value == pytest.approx(100)
    assert figures["TTFT p95"].value == pytest.approx(300)
    assert figures["ITL p50"].value == pytest.approx(100)
    assert figures["ITL p95"].value == pytest.approx(200)
    assert figures["decode"].unit == "tok/s"


def test_figures_of_a_prefill_job() -> None:
    prefill, ttft = compute_figures(prefill_job(FULL), [[2.0]])
    assert prefill == Figure("prefill", "tok/s", 256.0)
    assert ttft == Figure("TTFT", "ms", 2_000.0)


@pytest.mark.parametrize("job", [*decode_jobs(FULL), prefill_job(FULL)], ids=lambda job: job.case)
def test_prompts_are_the_same_for_all_systems_in_a_round_and_new_in_every_round(job: DecodeJob) -> None:
    prompts = job.prompts("1", 500)
    assert prompts == job.prompts("1", 500)
    assert [len(prompt) for prompt in prompts] == [job.prompt_tokens] * job.concurrency
    assert all(100 <= token < 500 for prompt in prompts for token in prompt)
    first_blocks = {tuple(prompt[:16]) for prompt in [*prompts, *job.prompts("2", 500)]}
    assert len(first_blocks) == 2 * job.concurrency


def test_warm_prompt_differs_only_after_the_prefix() -> None:
    cold, warm = prefix_prompts(FULL, "1", 500)
    assert len(cold) == len(warm) == FULL.prefix + FULL.suffix
    assert cold[: FULL.prefix] == warm[: FULL.prefix]
    assert cold[FULL.prefix :] != warm[FULL.prefix :]


@pytest.mark.parametrize("lengths", [[3, 2], [3], [3, 3, 3], [4, 4]])
def test_answers_of_another_length_are_refused(lengths: Sequence[int]) -> None:
    job = DecodeJob("2 sequences", 2, 8, 3)
    good = {"tokens": [[1, 2, 3]] * 2, "times": [[0.1, 0.2, 0.3]] * 2}
    assert job.checked_times(good) == good["times"]
    times = [[0.1] * length for length in lengths]
    with pytest.raises(ValueError, match="asked for 2 x 3 tokens"):
        job.checked_times({"tokens": times, "times": times})


def test_ratios_are_computed_per_round_if_both_were_measured() -> None:
    board = Board("engine", ["octet", "peer"])
    for number, ours, theirs in ((1, 10.0, 5.0), (2, 100.0, 20.0), (3, 90.0, None)):
        board.add(number, "case", "octet", [Figure("decode", "tok/s", ours)])
        if theirs is not None:
            board.add(number, "case", "peer", [Figure("decode", "tok/s", theirs)])
    mine, base = FigureKey("case", "octet", "decode"), FigureKey("case", "peer", "decode")
    [record] = board.ratio(mine, base, "case vs peer")
    assert (record.low, record.high, record.runs, record.unit) == (2.0, 5.0, 2, "x")
    assert list(board.ratio(mine, FigureKey("case", "absent", "decode"), "case vs absent")) == []
    assert {(r.system, r.runs) for r in board.records()} == {("octet", 3), ("peer", 2)}
    assert {r.value for r in board.records() if r.system == "octet"} == {90.0}


def test_records_of_systems_are_adjacent() -> None:
    board = Board("engine", ["octet", "peer"])
    for system in ("peer", "octet"):
        for case in ("one", "two"):
            board.add(1, case, system, [Figure("decode", "tok/s", 1.0), Figure("TTFT", "ms", 1.0)])
    order = [(r.case, r.metric, r.system) for r in board.records()]
    assert order == [(c, m, s) for c in ("one", "two") for m in ("decode", "TTFT") for s in ("octet", "peer")]
