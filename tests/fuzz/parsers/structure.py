"""Schemas from callers, and tool calls in the output of models."""

import json
from itertools import count

from octet.rpc.checks import InvalidValue
from octet.rpc.refusal import Refusal
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.server.validation import GenerateLimits, GenerateValidator
from specialist.text.prompt import OfferedTool, Structure, StructureKind, ToolOffer
from specialist.text.structured_output import Grammar, GrammarCache
from specialist.text.tool_call_reader import CallReader
from specialist.text.tool_calls import HERMES, LLAMA, MISTRAL, detect_dialect, tool_call_rules
from tests.fuzz.parser import Parser

_VOCABULARY = sim_vocabulary()
_DOOR = GenerateValidator(GenerateLimits(context=4096, vocab_size=1000))
_GRAMMARS = GrammarCache(_VOCABULARY, _VOCABULARY.tokenizer.get_vocab_size())
_SCHEMAS = (
    b'{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}',
    b'{"anyOf": [{"type": "string", "pattern": "^[a-z]{2,5}$"}, {"enum": [1, "x", null]}, {"$ref": "#/$defs/b"}], '
    b'"$defs": {"b": {"type": "array", "items": {"type": "number"}, "maxItems": 3}}}',
)
_REGEXES = (b"[a-z]{2,5}(-[0-9]+)*", rb"(yes|no)\.?\s\d{3}", rb"\p{L}+[^\x00-\x1f]?")
_REGEX_WORDS = (
    *(rb"(?=a)", rb"\1", rb"(a+)+", rb"{1,99999}", rb"{999999999999}", rb"[", rb"(?P<n>a)", rb"\p{Z}", rb"|", rb"(?i)"),
    *(rb"[^\x00-\xff]", rb"\u{110000}", rb".*" * 30, rb"((a{1,50}){1,50}){1,50}", rb"/", rb"\/", rb"\n", rb"&", rb"~"),
)
_ANSWERS = (
    b'I look.\n<tool_call>\n{"name": "find", "arguments": {"at": [1, "}"]}}\n</tool_call>\n and more',
    b'[TOOL_CALLS][{"name": "find", "arguments": {"a": "\\u00e9"}}, {"name": "find", "arguments": {}}]',
    b'{"name": "find", "parameters": {"a": {"b": null}}}',
)
_MARKS = (b"<tool_call>", b"</tool_call>", b"[TOOL_CALLS]", b"\\", b'"', b"{", b"}", b'{"name": "find", ')


def _compiled(kind: StructureKind, raw: bytes) -> object:
    structure = Structure(kind, raw.decode("utf-8", "replace")[: 64 << 10])
    return Grammar(structure, _GRAMMARS.vocabulary(), _GRAMMARS.limits)


def _choices(raw: bytes) -> object:
    choices = tuple(raw.decode("utf-8", "replace")[: 64 << 10].split("\n"))[:1024]
    return Grammar(Structure("choice", choices=choices), _GRAMMARS.vocabulary(), _GRAMMARS.limits)


def _called(raw: bytes) -> object:
    """Validate a tool with these parameters as the replica does, then compile the parameters into a grammar."""
    parameters = raw.decode("utf-8", "replace")
    tool = wire.Tool(name="find", parameters=parameters, strict=True)
    chat = wire.Chat(messages=[wire.Message(role="user", content="x")], tools=[tool])
    _DOOR.validate(wire.GenerateRequest(request_id="r", chat=chat))
    offer = ToolOffer((OfferedTool("find", "Finds.", parameters, True),), "required", "", False)
    written = [
        tool_call_rules(offer, dialect, {}, _GRAMMARS.limits.depth, has_text=not offer.must_call)
        for dialect in (HERMES, MISTRAL, LLAMA)
    ]
    return Grammar(Structure("calls", written[0]), _GRAMMARS.vocabulary(), _GRAMMARS.limits)


def _read(raw: bytes) -> object:
    text = raw.decode("utf-8", "replace")
    said = []
    for dialect in (HERMES, MISTRAL, LLAMA):
        for guided in (False, True):
            ids = count()
            reader = CallReader(dialect, ("find",), lambda ids=ids: f"call-{next(ids)}", guided=guided)  # type: ignore[misc]
            said += [reader.push(text[: len(text) // 2]), reader.push(text[len(text) // 2 :]), reader.finish()]
    return said, detect_dialect(text)


PARSERS = [
    Parser(
        "structure.json_schema",
        lambda raw: _compiled("json_schema", raw),
        (InvalidValue,),
        _SCHEMAS,
        "json",
        words=(
            b'"$ref": "#"',
            b'"allOf": [{}]',
            b'"format": "date"',
            b'"const": {}',
            b'"not": {}',
            b'"multipleOf": 0.1',
        ),
        share=0.3,
    ),
    Parser(
        "structure.regex",
        lambda raw: _compiled("regex", raw[: 8 << 10]),
        (InvalidValue,),
        _REGEXES,
        "text",
        words=_REGEX_WORDS,
        share=0.3,
    ),
    Parser(
        "structure.choice", _choices, (InvalidValue,), (b"yes\nno", 'grün\n"quoted"\n\\n'.encode()), "text", share=0.3
    ),
    Parser("structure.tool", _called, (InvalidValue, Refusal), _SCHEMAS[:1], "json", share=0.3),
    Parser("structure.calls", _read, (), (*_ANSWERS, json.dumps({"a": 1}).encode()), "text", words=_MARKS, share=0.5),
]
