"""Even a model that samples at random writes correct calls when it must call a tool."""

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from octet.rpc.checks import InvalidValue
from specialist.engines.sim.vocabulary import TURN, TURN_END, sim_vocabulary
from specialist.text.prompt import OfferedTool, Structure, ToolOffer
from specialist.text.structured_output import GrammarCache, Guide
from specialist.text.tokenization import Detokenizer, TokenPieces
from specialist.text.tool_call_reader import ToolCalling
from specialist.text.tool_calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    ParsedText,
    ToolDialect,
    _call_schema,
    merge_call_parts,
)

SCHEMAS = {
    "move": {
        "type": "object",
        "properties": {"to": {"enum": ["a", "</tool_call>"]}, "by": {"type": "integer", "minimum": 0, "maximum": 20}},
        "required": ["to", "by"],
        "additionalProperties": False,
    },
    "mark": {
        "$defs": {"x": {"type": "boolean"}},
        "properties": {"x": {"$ref": "#/$defs/x"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "stop": None,
}
TOOLS = tuple(OfferedTool(name, "", json.dumps(schema) if schema else "", False) for name, schema in SCHEMAS.items())
STRICT = tuple(tool._replace(strict=True) for tool in TOOLS)
DIALECTS = (HERMES, MISTRAL, LLAMA)
WORDS = sim_vocabulary()
GRAMMARS = GrammarCache(WORDS, WORDS.tokenizer.get_vocab_size())


def draw(calling: ToolCalling, seed: int, prefix: str = "", most: int = 400) -> tuple[ParsedText, bool]:
    """Generate random allowed tokens. Where a control token or the end is allowed, take one of these half of the time.
    Return the parsed text, and whether the answer ended."""
    structure = calling.structure(64)
    assert structure is not None
    guide, rng, tokens = Guide(GRAMMARS.compile(structure)), Random(seed), list(WORDS.tokenizer.encode(prefix).ids)
    pieces = Detokenizer(TokenPieces(WORDS), calling.visible_markers())
    special = set(WORDS.control_ids.values())
    ended = False
    while not ended and len(tokens) < most:
        mask = guide.allowed(tokens)
        assert mask is not None
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()
        marks = [token for token in allowed if token in special]
        token = rng.choice(marks if marks and rng.random() < 0.5 else allowed)
        ended = token in WORDS.eos_ids
        tokens += [] if ended else [token]
        ended = ended or guide.ended(tokens[:-1], tokens[-1:])
    ids = iter("abcdefghijklmnopqrstuvwxyz" * 20)
    reader = calling.reader(lambda: next(ids))
    said = [*(reader.push(pieces.push([token])) for token in tokens), reader.finish()]
    return ParsedText(
        "".join(each.text for each in said), merge_call_parts(part for each in said for part in each.calls)
    ), ended


def check(said: ParsedText, names: set[str] | None = None) -> None:
    for call in said.calls:
        schema = SCHEMAS[call.name]
        Draft202012Validator(schema or {"type": "object", "maxProperties": 0}).validate(json.loads(call.arguments))
        assert names is None or call.name in names


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_model_that_must_call_calls_with_arguments_that_fit(dialect: ToolDialect) -> None:
    num_ended = 0
    for seed in range(12):
        said, ended = draw(ToolCalling(ToolOffer(TOOLS, "required"), dialect, {}), seed)
        if ended:
            check(said)
            assert said.calls and not said.text
            num_ended += 1
        said, ended = draw(ToolCalling(ToolOffer(TOOLS, "auto", "move"), dialect, {}), seed)
        assert ended and [call.name for call in said.calls] == ["move"] and not said.text
        check(said)
        said, ended = draw(ToolCalling(ToolOffer(TOOLS, "required", one_at_most=True), dialect, {}), seed)
        assert ended and len(said.calls) == 1 and not said.text
        check(said)
    assert num_ended


@pytest.mark.parametrize(("dialect", "control"), [(HERMES, (TURN, TURN_END)), (MISTRAL, (TURN,))])
def test_markers_may_be_tokens_without_a_text(dialect: ToolDialect, control: tuple[str, ...]) -> None:
    ids = {marker: WORDS.control_ids[text] for marker, text in zip(dialect.markers, control, strict=True)}
    for seed in range(6):
        said, ended = draw(ToolCalling(ToolOffer(STRICT, "required", one_at_most=True), dialect, ids), seed)
        assert ended and len(said.calls) == 1 and not said.text
        check(said)
        said, _ = draw(ToolCalling(ToolOffer(STRICT, "auto", one_at_most=True), dialect, ids), seed)
        check(said)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_model_that_is_free_to_call_is_strict_where_it_does(dialect: ToolDialect) -> None:
    """Outside a call, the model may write anything. Inside a call, it must follow the tool's schema."""
    begun = {"hermes": "Well.\n<tool_call>", "mistral": "Well. [TOOL_CALLS]", "llama": '{"na'}[dialect.name]
    calling = ToolCalling(ToolOffer(STRICT, "auto", one_at_most=True), dialect, {})
    for seed in range(8):
        said, ended = draw(calling, seed, begun)
        assert ended and len(said.calls) == 1 and said.text == ("Well." if dialect.begin else "")
        check(said)
        said, _ = draw(calling, seed, "It is not <tool", most=40)
        assert said.text.startswith("It is not") and not said.calls


def test_without_constraints_a_model_writes_freely() -> None:
    assert ToolCalling(ToolOffer(TOOLS), HERMES, {}).structure(64) is None
    for offer in (
        ToolOffer(STRICT),
        ToolOffer(TOOLS, one_at_most=True),
        ToolOffer(TOOLS, "required"),
        ToolOffer(TOOLS, name="stop"),
    ):
        assert ToolCalling(offer, HERMES, {}).structure(64) is not None
    lax = ToolCalling(ToolOffer(TOOLS, one_at_most=True), HERMES, {})
    said, ended = draw(lax, 1, '<tool_call>\n{"name": "move", "arguments": {"other": 1}}\n</tool_call>')
    assert ended and said.calls[0].arguments == '{"other": 1}', "without `strict`, any object must be allowed"


def test_schemas_that_cannot_be_kept_are_refused() -> None:
    bad: list[dict[str, object]] = [{"not": {}}, {"properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}]
    for schema in bad:
        tool = OfferedTool("bad", "", json.dumps(schema), False)
        structure = ToolCalling(ToolOffer((tool,), "required"), HERMES, {}).structure(64)
        assert structure is not None
        with pytest.raises(InvalidValue, match="each have a JSON Schema"):
            GRAMMARS.compile(structure)


CALL = '{"name": "move", "parameters": {"to": "a", "by": 2}}'
FORMS = {
    "json_schema": Structure("json_schema", json.dumps({"enum": [{"name": "<tool_call>"}, "[TOOL_CALLS] x", 7]})),
    "json_object": Structure("json_object"),
    "regex": Structure("regex", "(yes|no), sir"),
    "choice": Structure("choice", choices=("left", "right")),
}


def fits(form: Structure, text: str) -> bool:
    if form.kind == "json_object":
        return isinstance(json.loads(text), dict)
    if form.kind == "json_schema":
        return json.loads(text) in json.loads(form.text)["enum"]
    return text in (form.choices or ("yes, sir", "no, sir"))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_beside_tools_a_structure_applies_to_an_answer_without_calls(dialect: ToolDialect, form: Structure) -> None:
    begun = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": CALL}[dialect.name]
    texts = {"json_object": '{"name": 1', "json_schema": "7"}
    calling = ToolCalling(ToolOffer(STRICT, one_at_most=True), dialect, {}, form)
    num_texts = num_calls = 0
    for seed in range(8):
        for prefix in (begun, texts.get(form.kind, "")):
            said, ended = draw(calling, seed, prefix)
            if not ended:
                continue
            check(said)
            assert bool(said.calls) != bool(said.text) and (said.calls or fits(form, said.text)), said
            num_calls += bool(said.calls)
            num_texts += bool(said.text)
    assert num_calls and num_texts, "the model may do either"
    must = ToolCalling(ToolOffer(TOOLS, "auto", "move"), dialect, {}, form)
    said, ended = draw(must, 1)
    assert ended and [call.name for call in said.calls] == ["move"]


def test_references_of_a_recursive_tool_stay_within_its_arguments() -> None:
    tree = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "n": {"$ref": "#/properties/m"}, "m": {"type": "boolean"}},
        "required": ["m"],
        "additionalProperties": False,
    }
    schema = _call_schema(OfferedTool("tree", "", json.dumps(tree), True), LLAMA, tree)
    nested = {"m": True, "child": {"m": False, "n": True}}
    assert is_valid(schema, {"name": "tree", "parameters": nested})
    assert not is_valid(
        schema, {"name": "tree", "parameters": {"m": True, "child": {"name": "tree", "parameters": {}}}}
    )
    assert not is_valid(schema, {"name": "tree", "parameters": {"m": True, "n": 7}})


def is_valid(schema: dict[str, Any], value: object) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))
