"""The trained classifier is deterministic, takes bounded time, and gives a text the same result alone and in a
batch."""

import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.config.ensemble import REJECT
from router.routing.classifier.base import LIMIT, sample_text
from router.routing.classifier.features import MAX_BATCH_BYTES, extract_features
from router.routing.classifier.linear import DEFAULT_FILE, _first_of_each, read_classifier
from router.routing.normal_text import fold_unicode

CLASSIFIER = read_classifier(DEFAULT_FILE)
SPECIALISTS = {"template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug"}
TEXTS = st.text(max_size=400) | st.sampled_from(
    ["", "std::mutex m;", "a_b c__d _ __", "\ud800", "é" * 2000, "x" * 9000, "\n\n", "int main() { return 0; }"]
)


def test_labels_are_the_eight_specialists_and_reject() -> None:
    assert set(CLASSIFIER.labels) == SPECIALISTS | {REJECT}
    assert CLASSIFIER.labels[-1] == REJECT


@settings(max_examples=60)
@given(st.lists(TEXTS, max_size=12))
def test_a_batch_gives_the_same_bits_as_single_texts(texts: list[str]) -> None:
    together = CLASSIFIER.classify(texts)
    assert together == [CLASSIFIER.classify([text])[0] for text in texts]
    for distribution in together:
        assert abs(fsum(p for _, p in distribution.scores) - 1) < 1e-9
        assert {label for label, _ in distribution.scores} == set(CLASSIFIER.labels)


def test_a_large_batch_is_split() -> None:
    texts = [f"prompt {n} about std::atomic " + "word " * 500 for n in range(60)]
    assert sum(len(sample_text(text)) for text in texts) > MAX_BATCH_BYTES
    assert CLASSIFIER.classify(texts) == [CLASSIFIER.classify([text])[0] for text in texts]


def test_the_memory_of_a_batch_does_not_grow_with_prompts_times_features() -> None:
    texts = [f"why {n} std::mutex?" for n in range(5000)]
    alone = [CLASSIFIER.classify([text])[0] for text in texts[::50]]
    tracemalloc.start()
    try:
        together = CLASSIFIER.classify(texts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert together[::50] == alone
    assert peak < 64 << 20


@given(st.lists(st.integers(0, 2**40), max_size=50) | st.lists(st.integers(0, 3), max_size=50))
def test_the_first_of_each_key_is_kept_in_order(keys: list[int]) -> None:
    expected = [at for at, key in enumerate(keys) if key not in keys[:at]]
    assert _first_of_each(np.array(keys, dtype=np.intp)).tolist() == expected


def test_threads_do_not_disturb_each_other() -> None:
    texts = [f"{'word ' * n} std::atomic {n}" for n in range(200)]
    alone = [CLASSIFIER.classify([text])[0] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert [found for [found] in pool.map(lambda text: CLASSIFIER.classify([text]), texts)] == alone


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_features_do_not_depend_on_the_batch(texts: list[str]) -> None:
    samples = [sample_text(text) for text in texts]
    together = extract_features(samples)
    for number, piece in enumerate(samples):
        alone, mine = extract_features([piece]), together.prompt == number
        assert together.bucket[mine].tolist() == alone.bucket.tolist()
        assert together.family[mine].tolist() == alone.family.tolist()


@given(st.text(max_size=200), st.integers(0, 40_000))
def test_a_sample_is_bounded_and_keeps_both_ends(edge: str, filler: int) -> None:
    text = "begin" + edge + "x " * filler + edge + "end"
    found = sample_text(text)
    assert len(found) <= LIMIT + 2
    assert found.startswith(b"begin") and found.endswith(b"end")
    folded = fold_unicode(text).encode("utf-8", "replace")
    if max(len(text), len(folded)) <= LIMIT:
        assert found == folded


@pytest.mark.parametrize("unit", ["a", "_", "<", "::", " ", "a ", "é", "\n", "((((", "template<", "x_"])
def test_a_megabyte_costs_no_more_than_its_sample(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    small = text[:LIMIT]
    assert _seconds(text) < 10 * _seconds(small) + 0.005


def _seconds(text: str) -> float:
    def once() -> float:
        start = time.thread_time()
        CLASSIFIER.classify([text])
        return time.thread_time() - start

    return min(once() for _ in range(5))


def test_the_live_path_loads_no_training_tool() -> None:
    script = (
        "import sys, router.routing.classifier.linear as d; "
        "import router.routing.classifier.queue, router.routing.classifier.examples; "
        "d.read_classifier(d.DEFAULT_FILE).classify(['x']); "
        "sys.exit(any(n.partition('.')[0] in ('sklearn', 'scipy', 'torch', 'pandas') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("why does std::ranges::sort reject my iterator?", "stl"),
        ("undefined reference to vtable", "build"),
        ("write me a poem about the autumn rain", REJECT),
        ("is memory_order_relaxed enough for a stop flag read by another thread?", "concurrency"),
        ("Program received signal SIGSEGV, Segmentation fault.\n#0  0x0000 in f (p=0x0) at a.cpp:3", "debug"),
    ],
)
def test_plain_cases_are_routed_as_expected(text: str, label: str) -> None:
    assert CLASSIFIER.classify([text])[0].top == label
