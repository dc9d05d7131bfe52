"""The form that an answer must have, as callers write it in JSON."""

from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.fault import wrong
from router.http.fields import Fields, json_text

KINDS = ("json_object", "json_schema", "regex", "choice")
_FORMATS = ("text", "json_object", "json_schema")


def structure_of(fields: Fields) -> wire.Structure | None:
    """Octet's own way: `structure`, an object with one of its kinds as the only key. Raises Fault."""
    if not fields.has("structure"):
        return None
    form = fields.table("structure")
    given = form.given()
    if len(given) != 1 or given[0] not in KINDS:
        limit = f"an object with one key of {', '.join(KINDS)}"
        raise wrong(fields.name("structure"), limit, shorten(", ".join(given)))
    match given[0]:
        case "json_object":
            if not form.flag("json_object"):
                raise wrong(form.name("json_object"), "true, or left out", "false")
            return wire.Structure(json_object=True)
        case "json_schema":
            return wire.Structure(json_schema=schema_text(form, "json_schema"))
        case "regex":
            return wire.Structure(regex=form.needed_text("regex"))
        case _:
            return wire.Structure(choice=wire.Choices(choices=form.texts("choice")))


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
    return json_text(value, fields.name(key))
