"""Similarity is symmetric and between 0 and 1. It depends on the words and their order, but not on case or spacing."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from admission import similarity as module
from admission.similarity import similarity

texts = st.one_of(st.text(max_size=200), st.text("abc ;(){}\n", max_size=200))
words = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=60)

SUM = """int sum(const std::vector<int>& values) {
    int total = 0;
    for (int value : values) { total += value; }
    return total;
}"""
RENAMED = SUM.replace("total", "result").replace("values", "xs")
OTHER = "template <typename Key> struct Hash { std::size_t operator()(const Key& key) const noexcept; };"


@given(a=texts, b=texts)
def test_similarity_is_symmetric_and_a_share(a: str, b: str) -> None:
    assert 0 <= similarity(a, b) <= 1
    assert similarity(a, b) == similarity(b, a)


@given(text=texts)
def test_case_and_spacing_do_not_matter(text: str) -> None:
    assert similarity(text, text) == 1
    spaced = "".join(character + (" " if character in ";(){}\n" else "") for character in text)
    assert similarity(text, f"\n{spaced}\t") == 1
    assert similarity("Return X;", "return\n x ;") == 1


@given(mine=words, yours=words)
def test_texts_with_nothing_in_common_score_zero(mine: list[str], yours: list[str]) -> None:
    assert similarity(" ".join(mine), " ".join(word.upper() + "z" for word in yours)) == 0
    assert similarity(" ".join(mine), "") == 0


def test_adjacent_tokens_are_not_joined_into_words() -> None:
    assert similarity("ab c", "a bc") == 0


@given(words=words, at=st.integers(0, 59))
def test_one_word_more_costs_little_but_not_nothing(words: list[str], at: int) -> None:
    at %= len(words) + 1
    more = [*words[:at], "zz", *words[at:]]
    found = similarity(" ".join(words), " ".join(more))
    assert 1 - 3 / len(words) <= found < 1


def test_tokens_and_bigrams_weigh_the_same() -> None:
    assert similarity("a b", "a c") == 2 * 1 / (3 + 3)
    assert similarity("f(x)", "f(y)") == 2 * (3 + 1) / (7 + 7)


def test_word_order_matters() -> None:
    assert 0.4 < similarity("one two three four five", "five four three two one") < 1


def test_renamed_code_scores_above_other_code() -> None:
    renamed, other = similarity(SUM, RENAMED), similarity(SUM, OTHER)
    assert 0.5 < renamed < 0.9
    assert other < 0.35


def test_long_texts_are_compared_at_both_ends_only() -> None:
    """The limit on the compared length also limits the time of a comparison."""
    random = Random(3)
    long = " ".join(f"v{random.randrange(3000)}" for _ in range(40_000))
    assert len(module._tokens(long * 20)) < 2 * module._END
    assert len(module._tokens("()" * 200_000)) <= 2 * module._END
    assert similarity(long, long[:-60_000] + "x " * 30_000) < 0.7
    assert similarity(long, "x " * 30_000 + long[60_000:]) < 0.7
    assert similarity(long * 2, long * 2) == 1
