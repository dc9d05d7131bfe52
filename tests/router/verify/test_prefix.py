"""A cut answer is judged by its complete part: what is unclosed at the cut is no error, an error before it is."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.verify.prefix import complete_part
from router.verify.verifiers import extract_json, extract_python

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
PYTHON = '''import os

@cached
def read(path: str) -> str:
    """Return the text; raise OSError
for a missing file."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        raise
    else:
        pass


if os.name == "nt":
    x = {"a": [1,
2]}
elif True:
    y = f"{x!r}"
try:
    read("x")
finally:
    print("done")
class A:
    z = """
def no(): """
w = (1,
     2)
'''
CPP = """#include <vector>
using namespace std;
// it's a comment; {
template <typename T> struct Box { T value; Box(T v) : value{v} {} };
int sum(const vector<int>& v) { int s = 0; for (int x : v) { s += x; } return s; }
/* no; } */ const char* text = R"x( } ; )x";
struct P { int x; } origin;
enum class E { A, B };
int main() {
    auto f = [](int x) { return x * 2; };
    return f(sum({1, 2, 3}));
}
int last = 3;
"""


@given(value=values, cut=st.integers(0, 400), indent=st.sampled_from((None, 2)), is_fenced=st.booleans())
def test_json_that_was_cut_stays_json(value: Any, cut: int, indent: int | None, is_fenced: bool) -> None:
    text = json.dumps([value], indent=indent)[:cut]
    part = complete_part("json", f"Here it is:\n```json\n{text}" if is_fenced else text)
    if part is not None:
        for each in extract_json(part):
            json.loads(each)


def test_an_error_before_the_cut_stays_an_error() -> None:
    part = complete_part("json", '{"a": [1 2], "b": [3, {"c')
    assert part is not None
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(part)
    part = complete_part("python", "def f():\n    return return\n\nx = 1\ny = 2\nz")
    assert part is not None
    with pytest.raises(SyntaxError):
        ast.parse(part)


@pytest.mark.parametrize("fence", ["", "```python\n"])
def test_python_that_was_cut_anywhere_still_parses(fence: str) -> None:
    judged = 0
    for cut in range(len(PYTHON)):
        part = complete_part("python", fence + PYTHON[:cut])
        if part is not None:
            for code in extract_python(part) if fence else [part]:
                ast.parse(code)
                judged += "def read" in code
    assert judged > 100


def test_cpp_is_cut_between_declarations() -> None:
    ends = {complete_part("cpp", CPP[:cut]) for cut in range(len(CPP) + 1)} - {None}
    starts = [end for end in ends if end is not None]
    assert len(starts) >= 4
    for end in starts:
        assert end.rstrip()[-1] in ";}" and CPP.startswith(end)
        code = end.replace('R"x( } ; )x"', "").replace("/* no; } */", "").replace("// it's a comment; {", "")
        assert code.count("{") == code.count("}")
    assert complete_part("cpp", "#include <x>\nint main() { int x") is None, "nothing but includes is complete"


def test_other_verifiers_need_the_whole_answer() -> None:
    assert complete_part("json:schema.json", '{"a": 1, "b') is None
    assert complete_part("house:Style", "text") is None
    assert complete_part("non_empty", "text") == "text" and complete_part("non_empty", " \n") is None
    assert complete_part("json", "[" * 70_000) is None, "a long answer is not read"


@settings(max_examples=200, deadline=None)
@given(
    verifier=st.sampled_from(("json", "python", "cpp", "python:required")),
    text=st.text(alphabet="ab{}[]()\"'\\/*,;:=@#`~\n R0", max_size=300),
)
def test_hostile_text_is_only_shortened_or_closed(verifier: str, text: str) -> None:
    part = complete_part(verifier, text)
    if part is not None:
        assert len(part) <= 2 * len(text) + 10
