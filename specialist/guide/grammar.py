"""A structure, compiled for one vocabulary."""

import json
import re
from typing import Any

from llguidance import LLMatcher, regex_to_lark

from octet.rpc.json_object import NotAnObject, json_object
from specialist.guide.errors import GrammarRefused
from specialist.guide.limits import GuideLimits
from specialist.guide.structure import Structure
from specialist.guide.table import Table

_OPTIONS = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n[ ]{0,32}",
    "coerce_one_of": False,
    "lenient": False,
}
"""Spaces as people write them, and no more: a model that may write blanks without end will."""
_SHOWN = 160
_REASON = "error: "
"""Before the last word of a regular expression's parser."""
_AROUND = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: |<non-verbose/>|\. Enable 'coerce_one_of' .*")
_NOTHING = "one that nothing fits"
_TOO_COSTLY = "one that is too costly to follow"
_WORDS = {"LexerTooComplex": _TOO_COSTLY, "ParserTooComplex": _TOO_COSTLY}
"""Names of the library's own, which it gives instead of a reason; all others say that nothing can follow."""


class Grammar:
    """Made where time does not matter; from then on a request takes a copy."""

    def __init__(self, structure: Structure, table: Table, limits: GuideLimits) -> None:
        """Raises GrammarRefused."""
        self.table = table
        self.num_bytes = structure.num_bytes
        self._matcher = LLMatcher(table.tokenizer, _lark(structure, table, limits), log_level=0, limits=limits.parser)
        self._require_beginning(structure)

    def matcher(self) -> LLMatcher:
        return self._matcher.deep_copy()

    def _require_beginning(self, structure: Structure) -> None:
        """Something can be written in it."""
        probe = self._matcher.deep_copy()
        if not probe.is_error():
            probe.compute_bitmask()
        if probe.is_error():
            raise GrammarRefused(_wanted(structure), why(probe))


def why(matcher: LLMatcher) -> str:
    """In one line: the library's reason, without the grammar around it, which is none of the caller's."""
    lines = [line.strip() for line in matcher.get_error().split("<state>")[0].splitlines() if line.strip()]
    reason = next((line.removeprefix(_REASON) for line in lines if line.startswith(_REASON)), lines[0] if lines else "")
    said = _AROUND.sub("", reason).strip()
    return said[:_SHOWN] if " " in said else _WORDS.get(said, _NOTHING)


def _wanted(structure: Structure) -> str:
    if structure.kind == "regex":
        return "a regular expression without look-around and references, not too large, that some text matches"
    if structure.kind == "choice":
        return "choices that are not too many"
    schema = "a JSON Schema that some value fits, of keywords that can be kept while generating, not too large"
    return f"each with {schema}" if structure.kind == "calls" else schema


def _lark(structure: Structure, table: Table, limits: GuideLimits) -> str:
    """Where the vocabulary drops a space before an answer, there must be one; JSON does not care."""
    space = '" " ' if table.drops_space else ""
    if structure.kind == "regex":
        return f"start: ANSWER\nANSWER: {space}/{regex_to_lark(structure.text, 'dw')}/"
    if structure.kind == "choice":
        return f"start: ANSWER\nANSWER: {space}({' | '.join(map(_quoted, structure.choices))})"
    before = '" "? ' if table.drops_space else ""
    if structure.kind == "calls":
        return f"start: {before}calls\n{structure.text}"
    is_object = structure.kind == "json_object"
    rule = _json_rule({"type": "object"}) if is_object else json_schema(structure.text, limits.depth)
    return f"start: {before}answer\nanswer: {rule}"


def _quoted(choice: str) -> str:
    return json.dumps(choice, ensure_ascii=False)


def json_schema(text: str, depth: int) -> str:
    """A rule's right side. Raises GrammarRefused."""
    try:
        schema = json_object(text, depth)
    except NotAnObject as error:
        raise GrammarRefused(error.limit, error.value) from None
    return _json_rule(schema)


def _json_rule(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _OPTIONS})}"
