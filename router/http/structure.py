"""The form that an answer must have, as callers write it in JSON."""

import json
from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.fault import wrong
from router.http.fields import Fields

KINDS = ("json_object", "json_schema", "regex", "choice")
_FORMATS = ("text", "json_object", "json_schema")


def structure_of(fields: Fields) -> wire.Structure | None:
    """Octet's own way: an object with one of its kinds as the only key. Raises Fault."""
    given = fields.given()
    if not given:
        return None
    if len(given) > 1 or given[0] not in KINDS:
        where = fields.name(given[0]).rpartition(".")[0]
        raise wrong(where, f"an object with one key of {', '.join(KINDS)}", shorten(", ".join(given)))
    match given[0]:
        case "json_object":
            return wire.Structure(json_object=fields.flag("json_object"))
        case "json_schema":
            return wire.Structure(json_schema=schema_text(fields, "json_schema"))
        case "regex":
            return wire.Structure(regex=fields.needed_text("regex"))
        case _:
            return wire.Structure(choice=wire.Choices(choices=fields.texts("choice")))


def response_format_of(fields: Fields) -> wire.Structure | None:
    """OpenAI's way. None for plain text. Raises Fault."""
    if not fields.has("response_format"):
        return None
    asked = fields.table("response_format")
    kind = asked.needed_text("type")
    if kind not in _FORMATS:
        raise wrong(asked.name("type"), f"one of {', '.join(_FORMATS)}", shorten(kind))
    if kind == "text":
        return None
    if kind == "json_object":
        return wire.Structure(json_object=True)
    described = asked.table("json_schema")
    described.needed_text("name")
    described.flag("strict")
    return wire.Structure(json_schema=schema_text(described, "schema"))


def schema_text(fields: Fields, key: str) -> str:
    """A schema that is there, as JSON. Raises Fault."""
    value: Any = fields.raw(key)
    if not isinstance(value, dict):
        raise wrong(fields.name(key), "a JSON Schema, which is an object", shorten(value))
    return json.dumps(value)
