"""The requests that make up a load."""

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serving.callers import ServedAnswer
from bench.serving.workload import (
    USUAL,
    Ask,
    CallerClass,
    ServeMistake,
    TokenCount,
    build_prompt,
    checked,
    draw_asks,
    drawn,
    fit_count,
    parse_class,
    parse_gaps,
    parse_length,
    read_classes,
    recorded,
)
from simulation.traces import TRACE_BLOCK_SIZE, read_arrivals

ONE = CallerClass("one", 1.0, 5, 1.0, 2.0)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{second}.5,{100 * second},{9 * second}\n" for second in range(1, 9)
)
MOONCAKE = [(0, 1000, [1, 2]), (500, 1400, [1, 2, 3]), (2000, 600, [1, 4])]


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": at, "input_length": length, "output_length": 5, "hash_ids": ids} for at, length, ids in MOONCAKE
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("text", "variation"), [("poisson", 1.0), ("gamma:3", 3.0), ("gamma:0.5", 0.5), ("constant", 0.0)]
)
def test_gaps_have_a_mean_of_one_and_the_stated_variation(text: str, variation: float) -> None:
    rng, gap = Random(1), parse_gaps(text)
    gaps = [gap(rng) for _ in range(20_000)]
    assert mean(gaps) == pytest.approx(1.0, rel=0.1)
    assert pstdev(gaps) == pytest.approx(variation, rel=0.1)


@given(st.integers(1, 5000), st.integers(0, 5000), st.randoms())
def test_lengths_stay_within_their_bounds(low: int, more: int, rng: Random) -> None:
    assert parse_length(str(low))(rng) == low
    assert low <= parse_length(f"uniform:{low}:{low + more}")(rng) <= low + more
    drawn_length = parse_length(f"lognormal:{low}:0.9")(rng)
    assert drawn_length >= 1
    assert drawn_length == int(drawn_length)


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "many", "uniform:5", "uniform:9:3", "lognormal:5", "lognormal:0:1", "nan"]
)
def test_invalid_length_is_refused(text: str) -> None:
    with pytest.raises(ServeMistake):
        parse_length(text)


@pytest.mark.parametrize("text", ["", "often", "gamma", "gamma:0", "gamma:nan", "poisson:2"])
def test_invalid_arrivals_are_refused(text: str) -> None:
    with pytest.raises(ServeMistake):
        parse_gaps(text)


@given(seed=st.integers(0, 2**32), rate=st.floats(5.0, 50.0), context=st.integers(4, 400))
def test_load_depends_only_on_its_seed_and_fits_the_context(seed: int, rate: float, context: int) -> None:
    source = drawn(rate, parse_gaps("gamma:2"), parse_length("lognormal:60:1"), parse_length("uniform:1:40"))
    try:
        asks = draw_asks(source, USUAL, 3.0, seed, context)
    except ServeMistake:
        return  # With a long first gap, there may be no request at all.
    assert asks == draw_asks(source, USUAL, 3.0, seed, context)
    assert all(before.at <= after.at for before, after in pairwise(asks))
    assert all(0 <= ask.at < 3.0 for ask in asks)
    assert all(ask.prompt_tokens + ask.answer_tokens <= context for ask in asks)
    assert all(min(ask.prompt_tokens, ask.answer_tokens) >= 1 for ask in asks)


def test_classes_have_their_shares_and_arrivals_the_rate() -> None:
    source = drawn(100.0, parse_gaps("poisson"), parse_length("10"), parse_length("10"))
    asks = draw_asks(source, USUAL, 50.0, 0, 100)
    assert len(asks) == pytest.approx(5000, rel=0.05)
    share = sum(ask.caller.name == "interactive" for ask in asks) / len(asks)
    assert share == pytest.approx(0.7, abs=0.03)


def test_trace_keeps_its_gaps_and_lengths_or_is_scaled_to_a_rate(azure: Path) -> None:
    for rate, gap in ((None, 1.0), (4.0, 7 * 9 / 8 / 8 / 4 * 8 / 7 * 8 / 9)):
        asks = draw_asks(recorded(read_arrivals(azure), rate), [ONE], 30.0, seed=3, context=4096)
        assert len(asks) == pytest.approx(30.0 * (rate or 8 / 7.875), rel=0.1)
        within = [(a, b) for a, b in pairwise(asks) if b.prompt_tokens - a.prompt_tokens == 100]
        assert within
        scale = gap if rate is None else 8 / 7.875 / 4.0
        assert [b.at - a.at for a, b in within] == pytest.approx([scale] * len(within))
        assert all(ask.answer_tokens * 100 == ask.prompt_tokens * 9 for ask in asks)


def test_prompts_of_a_trace_share_their_common_blocks(mooncake: Path) -> None:
    count = TokenCount(1.0, 0.0)
    asks = draw_asks(recorded(read_arrivals(mooncake), None), [ONE], 100.0, seed=0, context=4096)
    texts = {ask.prompt_tokens: build_prompt(ask, count).split() for ask in asks}
    assert {length: len(words) for length, words in texts.items()} == {1000: 1000, 1400: 1400, 600: 600}
    assert texts[1000] == texts[1400][:1000]
    assert texts[600][:TRACE_BLOCK_SIZE] == texts[1000][:TRACE_BLOCK_SIZE]
    assert texts[600][TRACE_BLOCK_SIZE:] != texts[1000][TRACE_BLOCK_SIZE:600]


def test_other_prompts_share_nothing() -> None:
    source = drawn(100.0, parse_gaps("constant"), parse_length("40"), parse_length("4"))
    asks = [ask for seed in (0, 1) for ask in draw_asks(source, [ONE], 2.0, seed, 100)]
    beginnings = {tuple(build_prompt(ask, TokenCount()).split()[:8]) for ask in asks}
    assert len(beginnings) == len(asks)


@given(st.floats(0.3, 8.0), st.floats(0.0, 40.0), st.integers(60, 4000))
def test_prompt_has_the_requested_tokens_for_each_tokenizer(a_word: float, around: float, tokens: int) -> None:
    def counted(words: int) -> int:
        return round(a_word * words + around)

    count = fit_count((8, counted(8)), (200, counted(200)))
    prompt = build_prompt(Ask(0, 0.0, tokens, 1, ONE, 0), count)
    assert counted(len(prompt.split())) == pytest.approx(tokens, abs=1 + a_word + 0.02 * tokens)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fast:1:5:100", "a class must be written as NAME"),
        ("fast:0:5:100:200", "the share must be above 0"),
        ("fast:1:10:100:200", "the priority must be from 0 to 9"),
        ("fast:1:5:300:200", "0 < ttft_ms <= total_ms"),
        ("fast:1:high:100:200", "class fast: invalid literal"),
        (":1:5:100:200", "needs a name"),
    ],
)
def test_invalid_class_is_refused(text: str, why: str) -> None:
    with pytest.raises(ServeMistake, match=why):
        parse_class(text)


def test_classes_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text("fast: {share: 1, priority: 7, ttft_ms: 100, total_ms: 2000}\n")
    assert read_classes(path) == (parse_class("fast:1:7:100:2000"),)
    for content in ("", "- 1", "fast: {share: 1}", "fast: [", "fast: !!python/object:os.system {}"):
        path.write_text(content)
        with pytest.raises(ServeMistake, match=r"classes\.yaml: "):
            read_classes(path)
    with pytest.raises(ServeMistake, match="given twice"):
        checked([ONE, ONE])


@given(st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.sampled_from(["answered", "refused", "expired", "failed"]))
def test_only_a_complete_answer_within_both_deadlines_is_good(first: float, rest: float, end: str) -> None:
    answer = ServedAnswer(Ask(0, 0.0, 1, 1, ONE, 0), end, (first,), first + rest)  # type: ignore[arg-type]
    assert answer.good == (end == "answered" and first <= 1.0 and first + rest <= 2.0)
