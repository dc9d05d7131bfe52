"""The reader separates question and code, and ignores what people write around a question."""

from time import thread_time
from zlib import crc32

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.routing.classifier.base import LIMIT, sample_text
from router.routing.classifier.linear import CODE_SHARE, DEFAULT_FILE, read_classifier
from router.routing.classifier.reader import (
    FEATURE_VERSION,
    encode_views,
    extract_view_features,
    read_views,
    split_lines,
    strip_boilerplate,
)
from router.routing.normal_text import fold_unicode
from router.routing.solved import after_solved

CLASSIFIER = read_classifier(DEFAULT_FILE)
QUESTIONS = st.sampled_from(
    [
        "How do I erase elements from a std::map while I iterate over it?",
        "Why does my thread wait for the mutex for ever?",
        "What is the difference between a unique_ptr and a shared_ptr?",
        "Is there a way to constrain a template parameter with a concept?",
        "How can I read from a socket without blocking?",
    ]
)
CODE = st.sampled_from(
    [
        "int main() {\n    return 0;\n}",
        "#include <vector>\nstd::vector<int> v;",
        "for (auto& x : items) {\n  x += 1;\n}",
    ]
)
GREETINGS = st.sampled_from(
    ["Hi,\n", "Hello everyone, I hope you are well. ", "Good morning! ", "Hey there,\n", "Dear all,\n"]
)
ENDS = st.sampled_from(
    ["\nThanks!", " Any help is appreciated.", "\nBest regards, Sam", " Thanks in advance.", "\nCheers"]
)


@given(QUESTIONS, CODE)
def test_code_and_question_are_separate_views(question: str, code: str) -> None:
    for text in (f"{question}\n\n{code}", f"{question}\n```cpp\n{code}\n```", f"{code}\n\n{question}"):
        found = split_lines(text)
        assert [lines.strip() for lines in found] == [question, code]


@pytest.mark.parametrize(
    "line",
    [
        "if the list is empty it fails: why?",
        "for each of my threads there is a lock:",
        "import the module that I need.",
    ],
)
def test_a_sentence_that_begins_like_code_is_question(line: str) -> None:
    assert split_lines(f"{line}\nint x = 0;") == (line, "int x = 0;")


@pytest.mark.parametrize(("before", "after"), [("```", "```"), ("~~~", "~~~"), ("> ```cpp", "> ```"), ("```", "")])
def test_what_a_fence_encloses_is_code(before: str, after: str) -> None:
    assert split_lines(f"Why?\n{before}\nthis is just some text\n{after}")[1].strip() == "this is just some text"


@given(GREETINGS, QUESTIONS, ENDS)
def test_greetings_and_thanks_are_not_read(greeting: str, question: str, end: str) -> None:
    assert strip_boilerplate(f"{greeting}{question}{end}") == question


@pytest.mark.parametrize("text", ["Hello!", "thanks", "Hi there", "Thank you very much!", ""])
def test_a_text_of_greetings_alone_stays(text: str) -> None:
    assert strip_boilerplate(text) == text


@pytest.mark.parametrize(
    "text", ["write a hello world program", "any ideas why this leaks", "hide a member of a class"]
)
def test_a_question_without_greeting_stays(text: str) -> None:
    assert strip_boilerplate(text) == text


@given(st.text(max_size=300))
def test_every_line_is_in_one_view(text: str) -> None:
    lines = [line for line in text.split("\n") if not line.lstrip(" \t>").startswith(("```", "~~~"))]
    found = [line for view in split_lines(text) for line in view.split("\n")]
    assert sorted(found) == sorted([*lines, *[""] * (len(found) - len(lines))])


@given(QUESTIONS)
def test_invisible_and_wide_characters_change_nothing(question: str) -> None:
    wide = "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in question)
    for text in (question.replace(" ", "\u00a0"), "\u200b".join(question), wide):
        assert fold_unicode(text) == question
        assert CLASSIFIER.classify([text]) == CLASSIFIER.classify([question])


@given(st.text(max_size=400))
def test_folding_twice_changes_nothing_more_and_reading_never_fails(text: str) -> None:
    once = fold_unicode(text)
    assert fold_unicode(once) == once
    read_views(text)
    assert len(encode_views(sample_text(text))) == 3


def test_loan_words_are_alike_in_all_scripts() -> None:
    assert "mjutek" in read_views("мьютекс и поток").question
    assert read_views("für Größe").question == "fur grosse"
    assert read_views("互斥锁").question.split() == ["互", "斥", "锁"]


def test_what_precedes_a_solved_error_is_not_read() -> None:
    error = "main.cpp:(.text+0x1f): undefined reference to `foo()'"
    question = "How do I sort a std::vector of pairs by the second member?"
    views = read_views(f"Earlier I had this:\n{error}\nThat is solved now, I forgot a file.\n{question}")
    assert views.question.strip().endswith(question) and views.code == "" and "undefined" not in views.question


def test_a_prompt_that_says_only_that_an_error_is_solved_is_read() -> None:
    text = "The linker does not find my library. It is fixed now. Why?"
    assert read_views(text).question == text


def test_code_beside_a_question_weighs_less() -> None:
    assert 0 < CODE_SHARE < 1


SECONDS = 0.1  # far more than a sample takes to read, and far less than backtracking would take
WORDS = """
    hi hello dear all there everyone good morning i hope you are well new here sorry for about if please help me out
    quick question can could you someone many thanks any your ideas advice is would will be welcome appreciated greatly
    very much really in advance grateful best kind regards have a nice day looking forward sincerely we that was has
    already finally just now fixed solved gone got rid of no longer not works fine turned out ignore how to error: #0
"""
GAPS = st.sampled_from(["", " ", "  ", "\n", ", ", ". ", "! ", " " * 40, "\t", "(", "=", ":", "\u3002"])


@given(
    st.lists(st.tuples(st.sampled_from(WORDS.split()), GAPS), min_size=1, max_size=6),
    st.sampled_from(["", "x", "?", " x "]),
)
@example([("would", " "), ("really", " ")], "x")
@example([("now", " ")], "")
@example([("thanks", " " * 40), ("", " " * 40)], "x")
def test_no_text_is_read_slowly(parts: list[tuple[str, str]], end: str) -> None:
    piece = "".join(word + gap for word, gap in parts)
    for times in (4, 20, LIMIT // len(piece)):  # fewer first: what is exponential fails, and does not hang
        text = f"i {piece * times}{end}"
        assert min(seconds_to_read(text) for _ in range(2)) < SECONDS


def seconds_to_read(text: str) -> float:
    began = thread_time()
    encode_views(sample_text(text))
    after_solved(text)
    return thread_time() - began


def test_the_version_of_the_features_says_what_they_are() -> None:
    """If this fails, stored features no longer mean the same: raise FEATURE_VERSION and change both numbers here."""
    texts = (
        "Why does std::sort fail?\n```cpp\nint f(int x_y) { return x_y; }\n```",
        "Как работает std::move?",
        "怎么排序 vector?",
    )
    found = np.stack(extract_view_features([encode_views(text.encode()) for text in texts]))
    assert (FEATURE_VERSION, crc32(found.astype("<u4").tobytes())) == (2, 341729856)


def test_tildes_that_underline_open_no_fence() -> None:
    for line in ("    ~~~~~", "  ~~~ ^ ~~~", "> ~~~~ ^"):
        assert split_lines(f"main.cpp:3:1: error: no match\n{line}\nHow do I mend this?")[0] == "How do I mend this?"
    assert split_lines("Why?\n~~~ cpp\nx\n~~~\n> ~~~\ny\n> ~~~") == ("Why?", "x\ny")
