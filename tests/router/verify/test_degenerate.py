"""The check for degenerate text finds what no caller can use, and passes healthy text of every kind."""

import base64
import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.verify.degenerate import (
    AnswerHistory,
    describe_degeneration,
    find_loop,
    is_asked_to_repeat,
    is_checked,
)

ROOT = Path(__file__).parents[3]
QUESTION = "How do I reverse a list?"
RUSSIAN = "Чтобы развернуть список, используйте обратный срез или встроенную функцию, которая возвращает итератор. " * 2
CHINESE = (
    "要反转列表,可以使用切片或者内置函数,它会返回一个迭代器,然后再转换成列表,这样原来的列表不会被修改,非常方便实用。"
)


def broken(answer: str, question: str = QUESTION, *, is_cut: bool = True, usual: frozenset[str] | None = None) -> str:
    return describe_degeneration(question, answer, is_cut=is_cut, usual=usual)


@settings(max_examples=60, deadline=None)
@given(unit=st.text(min_size=1, max_size=40), start=st.sampled_from(("", "A list is reversed like this: ")))
def test_a_unit_that_repeats_until_the_cut_is_degenerate(unit: str, start: str) -> None:
    """After other text, digits and lines without letters may be data unless they are very long."""
    is_data = start and not any(map(str.isalpha, unit)) and ("\n" in unit or any(map(str.isdigit, unit)))
    if unit.strip() and not is_data:
        assert broken(start + unit * (600 // len(unit) + 7))
    if unit.strip():
        assert broken(start + unit * (6000 // len(unit) + 7))


DATA = {
    "CSV": ",,,,,,,,\n" * 12,
    "a grid": (" ".join("0" * 12) + "\n") * 12,
    "an array": "int a[64]={" + ", ".join("0" * 64) + "};",
    "a table": "| a | b | c |\n|---|---|---|\n" + "|   |   |   |\n" * 20,
    "a hex dump": "".join(f"{16 * n:08x}: {'0000 ' * 8} ................\n" for n in range(40)),
    "a ruler": "#" * 70,
    "a large array": "static const int t[1000] = {" + ", ".join("0" * 1000) + "};",
    "a heading": "=" * 70 + "\n  Results\n" + "=" * 70 + "\n",
}


@pytest.mark.parametrize("kind", DATA)
def test_data_without_letters_is_no_loop(kind: str) -> None:
    assert not broken(DATA[kind], is_cut=False)
    assert not broken(f"Here is what you asked for:\n```\n{DATA[kind]}"), "cut, after other text"


@settings(deadline=None)
@given(
    unit=st.sampled_from(("!", "0", ". ", "0000000 ", ",", "0, ", "-\n", "\n\n- ", "1 2 ")),
    size=st.integers(40, 9000),
    start=st.sampled_from(("", "\n", "1. ")),
)
def test_an_answer_of_nothing_but_signs_to_its_cut_is_degenerate(unit: str, size: int, start: str) -> None:
    text = start + (unit * size)[: size + 6 * len(unit)]
    if len(text.rstrip()) >= 48:
        assert broken(text)
    assert bool(broken(text, is_cut=False)) == bool(broken(f"So: {text}", is_cut=False)) or size < 4200


@given(
    sign=st.sampled_from((".", "!", "-", "*")),
    runs=st.lists(st.integers(60, 300), min_size=1, max_size=4),
    word=st.sampled_from((" strugg", " comprom", "So", "a ")),
)
def test_a_few_stray_words_hide_no_loop_of_signs(sign: str, runs: list[int], word: str) -> None:
    """As the demo model says with a broken adapter, whose answers are drawn."""
    text = "".join(f"{word}{sign * size}" for size in runs)
    if len(word.strip()) * len(runs) <= 20:
        assert broken(text)


@pytest.mark.parametrize("text", ["Sure" + "!" * 500, "A list is " + ". " * 300, "Here: " + "0, " * 1500])
def test_signs_after_other_text_are_degenerate_if_they_are_too_many(text: str) -> None:
    assert "repeats" in broken(text)


@pytest.mark.parametrize("unit", ["Z. ", "Z", "!!!!!!!", "the ", "of the of ", "<|x|>", "好"])
def test_a_loop_is_degenerate_even_if_it_ends_by_itself(unit: str) -> None:
    assert "repeats" in broken(unit * 60, is_cut=False)


@given(runs=st.lists(st.integers(45, 300), min_size=5, max_size=9), unit=st.sampled_from((".", "Z. ", " the cat")))
def test_a_loop_that_is_interrupted_is_degenerate(runs: list[int], unit: str) -> None:
    assert "repeat" in broken(" strugg".join((unit * size)[:size] for size in (*runs, 10)))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_loop_with_noise_is_degenerate(seed: int) -> None:
    random = Random(seed)
    words = ["Z", ".", "Z.", "of"]
    answer = " ".join(random.choices(words, weights=(60, 25, 13, 2), k=400))
    assert broken(answer)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), size=st.integers(60, 400))
def test_two_tokens_in_random_order_are_degenerate(seed: int, size: int) -> None:
    """What an adapter gives that makes two tokens far more likely than all others."""
    assert broken("".join(Random(seed).choices((" Z", "."), k=size)))


@given(blank=st.sampled_from(("", " ", "\n", " \n\t")), times=st.integers(0, 2000), num_tokens=st.integers(0, 500))
def test_a_blank_answer_is_degenerate_if_it_ended_by_itself_or_had_room_for_text(
    blank: str, times: int, num_tokens: int
) -> None:
    answer = blank * times
    assert broken(answer, is_cut=False) == "it is empty"
    has_room = num_tokens >= 16 or len(answer) >= 40
    assert describe_degeneration(QUESTION, answer, is_cut=True, num_tokens=num_tokens) == "it is empty" * has_room
    assert is_checked(answer, is_cut=True, num_tokens=num_tokens, limit=512) == has_room


@given(answer=st.text(min_size=1, max_size=60), limit=st.integers(1, 100), is_cut=st.booleans())
def test_a_short_answer_shows_nothing_and_a_blank_one_only_if_it_had_room(
    answer: str, limit: int, is_cut: bool
) -> None:
    assert not broken("Z. Z. Z. Z.", is_cut=False), "a short answer may be right"
    if answer.strip():
        assert is_checked(answer, is_cut=is_cut, num_tokens=400, limit=limit) == (len(answer.strip()) >= 40)
    assert is_checked("", is_cut=False, num_tokens=1, limit=limit) == (limit >= 16)


@pytest.mark.parametrize(("turns", "words"), [(3, 60), (5, 60), (5, 100), (4, 250)])
def test_a_long_unit_that_repeats_until_the_cut_is_degenerate(turns: int, words: int) -> None:
    random = Random(turns * words)
    unit = " ".join("".join(random.choices("abcdefghij", k=random.randint(2, 8))) for _ in range(words)) + ". "
    answer = "Here is the answer. " + unit * turns
    assert "repeats" in broken(answer) and "repeats" in broken(answer + unit[: words // 2])
    assert not broken(answer, is_cut=False), "a refrain"


SECRET = "sk-4711-Mäander"


@settings(max_examples=40, deadline=None)
@given(times=st.integers(7, 300), is_cut=st.booleans(), noise=st.sampled_from(("", "\n", " and ", "\ufffd\x01" * 9)))
def test_no_reason_quotes_the_answer(times: int, is_cut: bool, noise: str) -> None:
    reasons = [broken((SECRET + noise) * times, is_cut=is_cut), broken("Z. Q" * 90, is_cut=is_cut)]
    assert all(reasons)
    for reason in reasons:
        assert not any(part in reason for part in ("4711", "sk", "nder", "Z", "Q")), reason


def test_wrong_scripts_are_degenerate_unless_they_are_asked_for_or_usual() -> None:
    latin = frozenset({"Latin"})
    for answer, script in ((RUSSIAN, "Cyrillic"), (CHINESE, "Han or Kana")):
        assert script in broken(answer, usual=latin)
        assert not broken(answer), "the scripts of the lane are not known yet"
        assert not broken(answer, usual=latin | {script})
        assert not broken(answer, "Translate: how do I reverse a list?", usual=latin)
        assert not broken(answer, answer[:30], usual=latin)
        assert not broken(
            f"In {answer[:20]} it says:\n" + "def reverse(items):\n    return items[::-1]\n" * 2, usual=latin
        )
    soup = "".join(
        chr(0x400 + n % 200) + chr(0x5D0 + n % 20) + chr(0x4E00 + n * 7) + chr(0xE01 + n % 40) for n in range(60)
    )
    assert "scripts are mixed" in broken(soup)
    assert broken("\ufffd\x00\x03ab" * 3 + "".join(map(chr, range(0x80, 0xFF))))


def healthy_texts() -> list[tuple[str, str]]:
    random = Random(3)
    rows = [f"| {number} | {random.random():.3f} | item {number} | yes |" for number in range(150)]
    log = [f"2026-11-18 20:{n // 60:02}:{n % 60:02} INFO worker {random.randint(1, 9)} done" for n in range(200)]
    return [
        ("a table", "\n".join(rows)),
        ("an enum", "enum class Color {\n" + "".join(f"    value_{n} = {n},\n" for n in range(300)) + "};"),
        ("includes", "".join(f"#include <{name}>\n" for name in _WORDS)),
        ("JSON", json.dumps([{"id": n, "name": f"user {n}", "active": n % 3 == 0} for n in range(200)], indent=2)),
        ("numbers", ", ".join(str(random.randint(0, 255)) for _ in range(2000))),
        ("base64", base64.b64encode(random.randbytes(4000)).decode()),
        ("a log", "\n".join(log)),
        ("a switch", "".join(f'    case Kind::{n}_{k}: return "{n}";\n' for k in "abcd" for n in _WORDS)),
        ("a count", " ".join(map(str, range(1, 1500)))),
        ("art", "\n".join(" " * (20 - n) + "*" * (2 * n + 1) for n in range(20))),
        ("Russian", RUSSIAN),
        ("Chinese", CHINESE),
        ("a poem", "Roses are red,\nviolets are blue,\nsugar is sweet,\nand so are you.\n\n" * 2),
        ("math", "∑ αᵢβᵢ ≤ √(∑ αᵢ²)·√(∑ βᵢ²), so λ = ⟨α, β⟩ / ‖β‖², and for all ε > 0 there is δ > 0. " * 2),  # noqa: RUF001
    ]


_WORDS = ("vector", "string", "map", "set", "array", "deque", "list", "tuple", "variant", "optional", "span", "ranges")


@pytest.mark.parametrize(("kind", "text"), healthy_texts(), ids=[kind for kind, _ in healthy_texts()])
@pytest.mark.parametrize("is_cut", [True, False])
def test_healthy_text_passes(kind: str, text: str, is_cut: bool) -> None:
    for end in range(100, len(text) + 400, 400):
        assert not broken(text[:end], is_cut=is_cut, usual=frozenset({"Latin", "Cyrillic", "Han or Kana"})), (kind, end)


def test_the_repositorys_own_text_passes() -> None:
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("router/verify/*.py"), *ROOT.glob("proto/octet/v1/*.proto")]
    checked = 0
    for file in files:
        text = file.read_text()
        for start in range(0, len(text), 3000):
            assert not broken(text[start : start + 3000]), (file, start)
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    ("question", "unit", "times"),
    [
        ("Repeat the word banana 200 times.", "banana ", 200),
        ("Write Z. 500 times", "Z. ", 500),
        ("Say hello world over and over again.", "hello world, ", 90),
        ("Fill the page with the word no", "no ", 300),
        ("A story. " * 400 + "Now write banana 100 times.", "banana ", 80),
        ("Wiederhole Katze 50 mal", "Katze ", 50),
        ("Write ha 100x", "ha", 100),
    ],
)
def test_a_repetition_that_the_caller_asked_for_shows_nothing(question: str, unit: str, times: int) -> None:
    assert is_asked_to_repeat(question, unit * times)
    assert is_asked_to_repeat(question, (unit * times)[:-2]), "cut within a word"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is a banana?", "banana " * 200),
        ("Give me 5 examples of lists!", "! " * 200),
        ("Context: In 2024 the company sold 31 ships. Who bought them?", "the " * 200),
        ("What is 2+2?", "What is 2+2? " * 50),
        ("Write a haiku about rain.", "rain " * 200),
        ("Write the word banana 3 times.", "banana " * 200),
        ("Repeat the question. " + "Some context. " * 20 + "What does the company sell?", "the company " * 100),
        ("the word. " * 300 + "Say it 900 times." + " Some context." * 300, "the word. " * 100),
        ("Repeat banana 200 times", "A list is reversed by reversed(). " + "".join(map(chr, range(0x400, 0x440)))),
        ("Repeat it forever", ""),
    ],
)
def test_what_a_caller_did_not_ask_for_is_not_excused(question: str, answer: str) -> None:
    assert not is_asked_to_repeat(question, answer)


@given(text=st.text(max_size=300))
def test_a_loop_is_one(text: str) -> None:
    unit, covered = find_loop(text)
    assert 0 <= covered <= len(text)
    if covered:
        tail = text[len(text) - covered :]
        assert covered >= 6 * unit > 0 and all(a == b for a, b in zip(tail, tail[unit:], strict=False))


def test_the_check_takes_linear_time() -> None:
    """Counted in characters compared, not in seconds: hostile periods must not make the search quadratic."""
    for text in ("a" * 8191 + "b", "ab" * 4000 + "a", ("a" * 90 + "b") * 90):
        assert find_loop(text)[1] <= len(text)
    assert broken("ab" * 500_000)


def test_usual_scripts_are_learned_by_specialist() -> None:
    history = AnswerHistory()
    for _ in range(19):
        history.add("a", "plain")
    assert history.usual("a") is None
    history.add("a", RUSSIAN)
    assert history.usual("a") == frozenset({"Latin", "Cyrillic"}) and history.usual("b") is None
