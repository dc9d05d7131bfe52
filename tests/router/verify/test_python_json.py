"""Python and JSON are parsed, and deep nesting crashes only the process that parses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.verify.checks import MOST_VALUE_DEPTH, find_json_error
from router.verify.pool import VerifierPool
from router.verify.verdict import VerifierLimits
from router.verify.verifiers import TextVerifier, extract_json, extract_python
from tests.router.verify.conftest import all_judged, judged

PYTHON = {
    "a block": ("passed", "So:\n```python\nprint(1)\n```"),
    "left open": ("passed", "```py\ndef f():\n    return 1\n"),
    "bare": ("passed", "import os\n\ndef f():\n    return os.name\n"),
    "without a language": ("passed", "```\nimport os\nprint(os.name)\n```"),
    "a session": ("passed", "```python\n>>> x = 1\n>>> for i in range(2):\n...     print(i)\n0\n1\n```"),
    "in a list": ("passed", "1. First\n   ```python\n   if x:\n       y()\n   ```"),
    "indented": ("passed", "```python\n    x = 1\n    y = 2\n```"),
    "a notebook": (
        "passed",
        "```python\n%matplotlib inline\n!pip install x \\\n  y\nfiles = !ls\nif files:\n    %time print(files)\n```",
    ),
    "signs of Python": ("passed", "```python\nx = (a\n  %b)\ns = '''\n!x\n'''\n```"),
    "a notebook that is broken": ("failed", "```python\n!pip install x\nx = = 1\n```"),
    "only for the notebook": ("skipped", "```python\n!pip install x\n```"),
    "a cell of another language": ("skipped", "```python\n%%bash\nls -l | wc\n```"),
    "a cell that is timed": ("passed", "```python\n%%time\nf(1)\n```"),
    "broken": ("failed", "```python\ndef f(:\n    pass\n```"),
    "one of two": ("failed", "```python\nx = 1\n```\n```python\nx = = 1\n```"),
    "zeros": ("failed", "```python\nx = '\0'\n```"),
    "half a character": ("failed", "```python\nx = '\ud800'\n```"),
    "deep": ("failed", "```python\nx = " + "(" * 50_000 + ")" * 50_000 + "\n```"),
    "deep in another way": ("failed", "```python\nx = " + "-" * 200_000 + "1\n```"),
    "deeper": ("failed", "```python\nx = " + "a." * 200_000 + "b\n```"),
    "prose": ("skipped", "Use a dictionary."),
    "another language": ("skipped", "```cpp\nint x;\n```"),
}


def python_verifier(**more: Any) -> TextVerifier:
    return TextVerifier("python", VerifierPool(), VerifierLimits(20, 300, 1 << 20), "python", **more)


def test_python_is_parsed() -> None:
    verdicts = all_judged(python_verifier(), [answer for _, answer in PYTHON.values()])
    got = dict(zip(PYTHON, verdicts, strict=True))
    assert {name: verdict for name, verdict in got.items() if verdict.outcome != PYTHON[name][0]} == {}
    assert got["broken"].why == "line 1: invalid syntax"


def test_python_can_be_required() -> None:
    assert judged(python_verifier(is_code_required=True), "No.").outcome == "failed"
    assert judged(python_verifier(), "x" * (1 << 21)).outcome == "skipped"


@given(st.text(st.characters(blacklist_characters="`~\r"), max_size=200))
def test_python_is_found_in_its_fence(text: str) -> None:
    assert len(extract_python(f"```python\nx = 1\n{text}\n```\n")) == 1
    assert len(extract_python(f"{text}\n```python\nx = 1\n")) == 1


def json_verifier(schema: Any = True) -> TextVerifier:
    return TextVerifier("json", VerifierPool(), VerifierLimits(5, 300, 1 << 20), "json", schema=schema)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_valid_json(value: Any) -> None:
    assert find_json_error(json.dumps(value), True) == ""
    assert find_json_error(json.dumps(value, ensure_ascii=False, indent=1), True) == ""
    assert find_json_error(json.dumps(value) + "x", True) != ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        "{'a': 1}",
        "[1,]",
        "// x\n1",
        "1 2",
        '{"a" 1}',
        "tru",
        "1e999",
        "[-1e400]",
        "1" * 5000,
    ],
)
def test_invalid_json(text: str) -> None:
    assert find_json_error(text, True).startswith("the answer is not JSON: ")


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "[1e300]", "1" * 4000, "1e-999", '"\\ud800"', " [1] \n"])
def test_unusual_json_is_valid(text: str) -> None:
    assert find_json_error(text, True) == ""


def test_nesting_depth_is_limited() -> None:
    assert find_json_error("[" * MOST_VALUE_DEPTH + "]" * MOST_VALUE_DEPTH, True) == ""
    assert "deeper" in find_json_error("[" * (MOST_VALUE_DEPTH + 1) + "]" * (MOST_VALUE_DEPTH + 1), True)
    assert "deeper" in find_json_error("[" * 100_000, True)


def test_json_is_the_fenced_blocks_or_the_whole_answer() -> None:
    assert extract_json('  {"a": 1}\n') == ['{"a": 1}']
    assert extract_json('Sure:\n```json\n{"a": 1}\n```\n') == ['{"a": 1}']
    assert extract_json("```json\n1\n```\n```json\n2\n```") == ["1", "2"]
    assert extract_json("```\n[]\n```") == ["[]"]
    assert extract_json("It is 1.") == ["It is 1."]


def test_json_is_judged_in_its_own_process() -> None:
    answers = ['{"a": 1}', "Here you are: 1", "[" * 100_000, "\ud800", "[" * 400_000 + "]" * 400_000]
    outcomes = [verdict.outcome for verdict in all_judged(json_verifier(), answers)]
    assert outcomes == ["passed", "failed", "failed", "failed", "failed"]


def test_a_pattern_with_endless_backtracking_is_stopped() -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    verifier = TextVerifier("json:x", VerifierPool(), VerifierLimits(1, 300, 1 << 20), "json", schema=schema)
    verdicts = all_judged(verifier, ['"aaa"', '"b"', json.dumps("a" * 60 + "b")])
    assert [verdict.outcome for verdict in verdicts] == ["passed", "failed", "failed"]
    assert "CPU" in verdicts[2].why
