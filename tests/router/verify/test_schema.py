"""Schemas follow JSON Schema, and a schema with an unsupported keyword is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.verify.checks import BadSchema, check_schema, find_mismatch
from router.verify.verifiers import read_schema

ROWS: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, None, {}], []),
    (False, [], [1, None, {}]),
    ({}, [1, None, {}], []),
    ({"type": "integer"}, [1, -5, 1.0], [1.5, "1", True, None]),
    ({"type": "number"}, [1, 1.5], [True, "1"]),
    ({"type": ["string", "null"]}, ["", None], [1, False]),
    ({"type": "boolean"}, [True, False], [0, 1]),
    ({"type": "object", "required": ["a"]}, [{"a": None}], [{}, {"b": 1}, []]),
    ({"properties": {"a": {"type": "string"}}}, [{}, {"a": "x"}, {"b": 1}, 5], [{"a": 1}]),
    ({"properties": {"a": True}, "additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}]),
    ({"additionalProperties": {"type": "integer"}}, [{"x": 1}], [{"x": "1"}]),
    ({"items": {"type": "integer"}}, [[], [1, 2], "x"], [[1, "2"]]),
    ({"enum": [1, "a", None, [1, {"b": 2}]]}, [1, 1.0, "a", None, [1, {"b": 2}]], [True, "b", [1], 0]),
    ({"const": {"a": [1]}}, [{"a": [1]}, {"a": [1.0]}], [{"a": [True]}, {}, {"a": [1], "b": 1}]),
    ({"const": False}, [False], [0, None]),
    ({"minimum": 2, "maximum": 4}, [2, 3.5, 4, "x"], [1, 4.1]),
    ({"exclusiveMinimum": 2, "exclusiveMaximum": 4}, [3], [2, 4]),
    ({"multipleOf": 0.1}, [0.3, 1, 7], [0.35]),
    ({"multipleOf": 3}, [9, 0, -3], [1, 10**300 + 1]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "äöü", 5], ["a", "abcd"]),
    ({"minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["x", 4, None], [1]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, [1, 3.5], [4, 1.5]),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [4], [2, 3.5]),
    ({"not": {"type": "string"}}, [1], ["x"]),
    ({"pattern": "^a+$"}, ["aa", 5], ["b", ""]),
    (
        {"$schema": "x", "title": "t", "description": "d", "default": 1, "examples": [], "format": "date"},
        ["no date"],
        [],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), ROWS, ids=lambda value: json.dumps(value)[:40])
def test_keywords_follow_the_standard(schema: Any, good: list[Any], bad: list[Any]) -> None:
    check_schema(schema)
    assert [value for value in good if find_mismatch(value, schema)] == []
    assert [value for value in bad if not find_mismatch(value, schema)] == []


UNKNOWN: list[Any] = [5, [], {"$ref": "#/x"}, {"if": {}}, {"uniqueItems": True}, {"allOf": [{"x": 1}]}]
BAD_TYPES: list[Any] = [{"type": "text"}, {"type": []}, {"type": [1]}, {"enum": 5}, {"pattern": "("}, {"pattern": 5}]
BAD_PARTS: list[Any] = [{"items": 5}, {"items": [{}]}, {"properties": []}, {"properties": {"a": 5}}, {"anyOf": []}]
BAD_LISTS: list[Any] = [{"required": "a"}, {"required": [1]}, {"anyOf": {}}, {"additionalProperties": 1}]
BAD_NUMBERS: list[Any] = [{"minimum": "1"}, {"minimum": True}, {"minLength": -1}, {"minLength": 1.5}, {"multipleOf": 0}]


@pytest.mark.parametrize("schema", [*UNKNOWN, *BAD_TYPES, *BAD_PARTS, *BAD_LISTS, *BAD_NUMBERS], ids=json.dumps)
def test_unsupported_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(BadSchema, match="the schema"):
        check_schema(schema)


def test_nesting_depth_of_a_schema_is_limited() -> None:
    schema: Any = True
    for _ in range(100):
        schema = {"not": schema}
    with pytest.raises(BadSchema, match="nested deeper"):
        check_schema(schema)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_any_value_is_a_valid_or_a_refused_schema(value: Any) -> None:
    try:
        check_schema(value)
    except BadSchema:
        return
    find_mismatch({"a": [1, "x", None]}, value)


def test_a_mismatch_names_its_path() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert find_mismatch({"a": [1, "x"]}, schema) == 'the answer.a[1]: violates type "integer"'


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "cannot read"), ("{", "not JSON"), ('{"$ref": 1}', "supported keywords"), ("[" * 100_000, "not JSON")],
)
def test_invalid_schema_files(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "schema.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=why):
        read_schema(path)
