"""The rules of a grammar for calls: what a model may write where it must call, or may call and must get it right."""

import json
from collections.abc import Iterator, Mapping

from specialist.guide.grammar import json_schema
from specialist.tools.dialect import Dialect
from specialist.tools.tool import Offer, Tool

_ANY = '{"type":"object"}'
_NONE = '{"type":"object","properties":{},"additionalProperties":false}'
_TEXT = r"TEXT: /(.|\n)*/"
_UNLIKE_A_CALL = r"TEXT: /([^{ \n\r\t]|[ \n\r\t]+[^{ \n\r\t])(.|\n)*/"
"""Blanks and a bracket begin a call."""


def rules(offer: Offer, dialect: Dialect, control: Mapping[str, int], depth: int) -> str:
    """The first is `calls`. `control` are those of the dialect's markers that are tokens without a text. Raises
    GrammarRefused for a schema that is none."""
    lines = [f"calls: {_calls(offer, dialect, control)}"]
    lines += [f"call: {' | '.join(f'call_{index}' for index in range(len(offer.callable)))}"]
    for index, tool in enumerate(offer.callable):
        before = json.dumps(f'{{"name": {json.dumps(tool.name)}, "{dialect.key}": ')
        lines += [f'call_{index}: {before} arguments_{index} "}}"']
        lines += [f"arguments_{index}: {_arguments(tool, offer, depth)}"]
    return "\n".join([*lines, *_prose(offer, dialect, control)])


def _calls(offer: Offer, dialect: Dialect, control: Mapping[str, int]) -> str:
    once = offer.one_at_most or bool(offer.name) or dialect.calls_once
    if not dialect.begin:
        return "call" if offer.must_call else "call | text"
    block = _block(dialect, control, once)
    if not offer.must_call:
        return f"text | begun {block}" if once else f"(begun {block})* text"
    begin = _marker(dialect.begin, control)
    if once or dialect.is_list:
        return f"{begin} {block}"
    return f"{begin} {block} ({json.dumps(dialect.gap)} {begin} {block})*"


def _block(dialect: Dialect, control: Mapping[str, int], once: bool) -> str:
    """Behind the marker that begins it."""
    if dialect.is_list:
        return '" "? "[" call "]"' if once else '" "? "[" call (", " call)* "]"'
    gap = json.dumps(dialect.gap)
    return f"{gap} call {gap} {_marker(dialect.end, control)}"


def _prose(offer: Offer, dialect: Dialect, control: Mapping[str, int]) -> Iterator[str]:
    """What is written beside calls."""
    if offer.must_call:
        return
    if not dialect.begin:
        yield "text: TEXT?"
        yield _UNLIKE_A_CALL
        return
    yield "text: TEXT"
    yield _TEXT
    lazy = "" if dialect.begin in control else "[lazy]"
    yield f"begun{lazy}: TEXT {_marker(dialect.begin, control)}"


def _marker(marker: str, control: Mapping[str, int]) -> str:
    return f"<[{control[marker]}]>" if marker in control else json.dumps(marker)


def _arguments(tool: Tool, offer: Offer, depth: int) -> str:
    """A model that is free to call, and was not told to be strict, writes any object."""
    if not (tool.strict or offer.must_call):
        return json_schema(_ANY, depth)
    if not tool.parameters:
        return json_schema(_NONE, depth)
    return json_schema(json.dumps({"type": "object", **json.loads(tool.parameters)}), depth)
