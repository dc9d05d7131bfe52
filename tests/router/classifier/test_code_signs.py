"""The language of code is told by what other languages do not have, and by the beginning only."""

from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing.classifier.code_signs import CODE_SIGNS, code_sign, used_names

OURS, OTHER, MIXED, UNCLEAR, NONE = CODE_SIGNS


@pytest.mark.parametrize(
    ("code", "sign"),
    [
        ("#include <vector>\nint main() { std::vector<int> v; }", OURS),
        ("char *p = malloc(10);\nfree(p);", OURS),
        ("template <typename T> constexpr T twice(T x) { return x + x; }", OURS),
        ("public static int twice(int x) {\n    return 2 * x;\n}", OTHER),
        ("def twice(self, x):\n    return 2 * x\n", OTHER),
        ("fn twice(x: i32) -> i32 { let mut y = x; y + x }", OTHER),
        ("import std.stdio;\nvoid main() @safe { writeln(__traits(compiles, 1)); }", OTHER),
        ("function twice(x) { return x === undefined ? null : 2 * x; }", OTHER),
        ("x = 2 * y", UNCLEAR),
        ("std::string None;", MIXED),
        (" \n", NONE),
    ],
)
def test_languages_are_told_by_their_pieces(code: str, sign: str) -> None:
    assert code_sign(code) == sign


@given(st.text())
def test_every_code_has_a_sign(code: str) -> None:
    assert code_sign(code) in CODE_SIGNS
    assert (code_sign(code) == NONE) == (not code.strip())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('#include <mutex>\n  #include "my/own.h"\nstd::thread t;\nstd::thread u;', "mutex my/own.h thread"),
        ("Why is std::map slow?", "map"),
        ("import java.util.List;\nfrom os import path", "java.util.List os"),
        ("I import goods from Spain.", ""),
    ],
)
def test_used_names(text: str, names: str) -> None:
    assert used_names(text) == names


@given(st.sampled_from(["std::", "#include <", "import ", "using namespace ", "\n> ", "\t", "std", "#", "a.b/"]))
def test_names_are_few_and_found_in_linear_time(piece: str) -> None:
    text = (piece * 3000)[:3000]
    began = thread_time()
    assert len(used_names(text).split()) <= 12
    assert thread_time() - began < 0.1
