"""The sign of a prompt says which languages its question names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing.classifier.named_languages import _WORD, SIGNS, _words, language_sign

CPP, C, OTHER, MIXED, NONE = SIGNS


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("How do I sort a vector in C++?", CPP),
        ("Как использовать std::move в C++17?", CPP),
        ("Is there a garbage collector in C?", C),
        ("C语言怎么排序", C),
        ("How do I borrow twice in Rust?", OTHER),
        ("write it in Go.", OTHER),
        ("node.js streams", OTHER),
        ("What does C# do with structs?", OTHER),
        ("call C++ from Python", MIXED),
        ("call C from Python", MIXED),
        ("What is a thread?", NONE),
    ],
)
def test_the_languages_that_are_named_decide(text: str, sign: str) -> None:
    assert language_sign(text, text) == sign


@pytest.mark.parametrize(
    ("tag", "sign"), [("cpp", CPP), ("c", C), ("python", OTHER), ("d", OTHER), ("", NONE), ("text", NONE)]
)
def test_the_tag_of_a_fence_names_a_language(tag: str, sign: str) -> None:
    assert language_sign("What is this?", f"What is this?\n```{tag}\nx = 1\n```") == sign


@given(st.text())
def test_every_text_has_one_sign(text: str) -> None:
    assert language_sign(text, text) in SIGNS


@given(st.text() | st.text("ab1_.@+#-C \n\u0130\u00e9"))
def test_the_words_are_those_that_a_search_finds(text: str) -> None:
    assert _words(text) == set(_WORD.findall(text.lower()))


@given(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.integers(0, 99))
def test_a_number_as_an_argument_names_no_language(method: str, number: int) -> None:
    text = f"auto x = a.{method}({number});\nreturn x;"
    assert language_sign("", text) == NONE


@pytest.mark.parametrize(
    ("log", "sign"),
    [
        ("Main.java:3:9: error: ';' expected", OTHER),
        ("main.d(3): Error: undefined identifier", OTHER),
        ("Program.cs(7,27): error CS0115", OTHER),
        ('File "a.py", line 3', OTHER),
        ("main.cc:3:1: error: expected ';'", CPP),
        ("main.c:3:1: error: expected ';'", C),
    ],
)
def test_files_in_tools_output_name_a_language(log: str, sign: str) -> None:
    assert language_sign("What is this?", log) == sign
