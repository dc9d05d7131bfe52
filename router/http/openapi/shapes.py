"""JSON Schemas, written short."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from octet.rpc.range import Range

Shape = Mapping[str, Any]
TEXT: Shape = {"type": "string"}
FLAG: Shape = {"type": "boolean"}
COUNT: Shape = {"type": "integer", "minimum": 0}
NUMBER: Shape = {"type": "number"}
NOTHING: Shape = {"type": "null"}
ANYTHING: Shape = {}
_PLAIN: Mapping[Any, Shape] = {str: TEXT, bool: FLAG, int: {"type": "integer"}, float: NUMBER, NoneType: NOTHING}


def record(needed: Mapping[str, Shape], further: Mapping[str, Shape] | None = None, *, more: bool = False) -> Shape:
    """An object. `further` are those it may hold, `more` says that others may come beside."""
    found: dict[str, Any] = {"type": "object", "properties": {**needed, **(further or {})}}
    if needed:
        found["required"] = list(needed)
    if not more:
        found["additionalProperties"] = False
    return found


def asked(needed: Mapping[str, Shape], further: Mapping[str, Shape], *, more: bool) -> Shape:
    """An object from a caller, who may write null for nothing."""
    return record(needed, {key: maybe(shape) for key, shape in further.items()}, more=more)


def maybe(shape: Shape) -> Shape:
    return one_of(shape, NOTHING)


def one_of(*shapes: Shape) -> Shape:
    return {"anyOf": list(shapes)}


def several(shape: Shape, least: int = 0, most: int | None = None) -> Shape:
    return {"type": "array", "items": shape, "minItems": least} | ({} if most is None else {"maxItems": most})


def word(*words: str) -> Shape:
    return {"type": "string", "enum": list(words)}


def text(most: int, least: int = 0) -> Shape:
    return {"type": "string", "minLength": least, "maxLength": most}


def ranged(limits: Range, kind: str) -> Shape:
    """`kind` is integer or number."""
    least = "exclusiveMinimum" if limits.open else "minimum"
    found = {"type": kind, least: limits.least, "maximum": limits.most}
    return one_of({"const": 0}, found) if limits.or_zero else found


def named(name: str) -> Shape:
    """One that the document holds under this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def shape_of(kind: Any) -> Shape:
    """Of a value whose type is known, as it is written in JSON."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return record({each.name: shape_of(hints[each.name]) for each in fields(kind) if each.name != "wire"})
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return one_of(*map(shape_of, inner))
    if origin is tuple and inner[1:] == (Ellipsis,):
        return several(shape_of(inner[0]))
    if origin is Mapping and inner[0] is str:
        return {"type": "object", "additionalProperties": ANYTHING if inner[1] is Any else shape_of(inner[1])}
    raise TypeError(f"{kind} has no shape in JSON")
