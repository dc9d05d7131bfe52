"""Tool calls and text are parsed from an answer, however it is split into pieces."""

import json
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specialist.text.prompt import ToolCallFragment
from specialist.text.tool_call_reader import CallReader
from specialist.text.tool_calls import HERMES, LLAMA, MISTRAL, ParsedText, ToolDialect, merge_call_parts

NAMES = ("find", "move-to")
DIALECTS = (HERMES, MISTRAL, LLAMA)
FRAGMENTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<tool_",
        "<",
        "[TOOL",
        "\n",
        " ",
        "a",
        "é",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
    ),
    *(
        '{"name": "find", "arguments": {"a": 1}}',
        '{"name": "find", "parameters": {"a": "}"}}',
        '{"name": "none", "arguments": {}}',
    ),
    *(
        '{"arguments": {}, "name": "find"}',
        '[{"name": "find", "arguments": {}}]',
        '{"name": "find", "arguments": NaN}',
        ", ",
    ),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["</tool_call>", '"}', "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3).map(json.dumps)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
WORDS = st.text(st.sampled_from("ab c\n.é"), min_size=1, max_size=8).map(str.strip).filter(bool)


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:stop] for start, stop in pairwise(at)]


def read(dialect: ToolDialect, parts: Sequence[str], *, guided: bool = False) -> ParsedText:
    ids = (f"id{number}" for number in count())
    reader = CallReader(dialect, NAMES, lambda: next(ids), guided=guided)
    said = [*(reader.push(part) for part in parts), reader.finish()]
    return ParsedText(
        "".join(each.text for each in said), merge_call_parts(part for each in said for part in each.calls)
    )


def written(dialect: ToolDialect, calls: Sequence[tuple[str, str]]) -> str:
    objects = [f'{{"name": "{name}", "{dialect.key}": {arguments}}}' for name, arguments in calls]
    if dialect.is_list:
        return f"[TOOL_CALLS] [{', '.join(objects)}]"
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects) if dialect.begin else objects[0]


@given(st.sampled_from(DIALECTS), TEXTS, st.lists(st.integers(0, 999), max_size=12), st.booleans())
def test_result_does_not_depend_on_how_the_text_is_cut(
    dialect: ToolDialect, text: str, cuts: list[int], guided: bool
) -> None:
    assert read(dialect, pieces(text, cuts), guided=guided) == read(dialect, [text], guided=guided)


@given(st.sampled_from(DIALECTS), TEXTS)
@example(HERMES, '<tool_call>{"name": "none", "arguments": {}}</tool_call>')
@example(HERMES, '<tool_call>{"name": "find", "arguments": {}} </tool')
@example(HERMES, '<tool_call>{"name": "find", "arguments": {}} </x')
@example(HERMES, '<tool_call>{"name": "find", "arguments": {"a": NaN}}</tool_call>')
@example(HERMES, '<tool_call>{"name": "find", "arguments": [1]}</tool_call>')
@example(MISTRAL, '[TOOL_CALLS][{"name": "find", "arguments": {}}, 1]')
@example(MISTRAL, "[TOOL_CALLS][]")
def test_text_that_is_not_a_call_stays_text(dialect: ToolDialect, text: str) -> None:
    said = read(dialect, [text])
    if not said.calls:
        assert said.text == text
    for call in said.calls:
        assert call.name in NAMES and isinstance(json.loads(call.arguments), dict) and call.arguments in text
    assert [call.index for call in said.calls] == list(range(len(said.calls)))


@settings(max_examples=40)
@given(st.sampled_from(DIALECTS), CALLS, WORDS, WORDS, st.booleans(), st.lists(st.integers(0, 999), max_size=9))
def test_calls_are_separated_from_the_surrounding_text(
    dialect: ToolDialect, calls: list[tuple[str, str]], before: str, after: str, guided: bool, cuts: list[int]
) -> None:
    calls = calls[:1] if dialect.allows_one_call else calls
    before = before if dialect.begin else ""
    said = read(dialect, pieces(f"{before}\n{written(dialect, calls)}\n {after}", cuts), guided=guided)
    assert said.text == before + after
    assert [(call.name, call.arguments) for call in said.calls] == calls
    assert [call.call_id for call in said.calls] == [f"id{index}" for index in range(len(calls))]


@given(st.sampled_from(DIALECTS), CALLS, st.data())
def test_guided_answer_that_is_cut_off_keeps_what_was_written(
    dialect: ToolDialect, calls: list[tuple[str, str]], data: st.DataObject
) -> None:
    calls = calls[:1] if dialect.allows_one_call else calls
    whole = written(dialect, calls)
    cut = data.draw(st.integers(0, len(whole)))
    said = read(dialect, [whole[:cut]], guided=True)
    answered = [(call.name, call.arguments) for call in said.calls]
    assert answered[:-1] == calls[: max(0, len(answered) - 1)]
    if answered:
        name, arguments = calls[len(answered) - 1]
        assert answered[-1][0] == name and arguments.startswith(answered[-1][1])
    assert said.text in whole[:cut]
    assert cut < len(whole) or (not said.text and answered == calls)


def test_arguments_come_while_they_are_written_where_nothing_can_go_wrong() -> None:
    reader = CallReader(HERMES, NAMES, lambda: "x", guided=True)
    assert reader.push('<tool_call>\n{"name": "find", "arguments": ') == ParsedText()
    assert reader.push('{"a": ').calls == (ToolCallFragment(0, "x", "find", '{"a": '),)
    assert reader.push("1}").calls == (ToolCallFragment(0, "", "", "1}"),)
    assert reader.push("}\n</tool_call>") == ParsedText() == reader.finish()


@pytest.mark.parametrize(
    ("text", "safe"),
    [("hello", "hello"), ("hello <", "hello"), ("hello <tool", "hello"), ("a <toolx", "a <toolx"), ("a \n", "a")],
)
def test_only_what_may_begin_a_call_is_held_back(text: str, safe: str) -> None:
    assert CallReader(HERMES, NAMES, str).push(text).text == safe


def test_linear_in_the_text() -> None:
    """Parsing in quadratic time would take tens of seconds."""
    for text in (
        "<tool_call>{" * 10_000,
        '<tool_call>{"a":1}' * 10_000,
        " " * 100_000 + "x",
        "<tool_call>" + " " * 100_000,
    ):
        assert read(HERMES, pieces(text, range(0, len(text), 8))).text == text
