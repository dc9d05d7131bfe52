"""Fields of a request body: annotations for msgspec structs, and the conversion of a JSON object to a struct.

Errors state the field, what is allowed and what was received.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from octet.limits import shorten
from router.api.http.errors import ApiError, invalid_field, missing_field, unknown_field, unsupported_field
from router.routing.validation import COUNTS, RANGES, SIZES

RANGE_KEY = "x-range"
_MAX_LISTED = 16  # an error lists the known fields if there are at most this many

_StructT = TypeVar("_StructT", bound=Struct)
Count = Annotated[int, Meta(ge=0)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
JsonSchemaObject = Annotated[dict[str, Any], Meta(extra={"must_be": "a JSON Schema, which is an object"})]
_NO_EXTRA: Mapping[str, Any] = {}
_NAMES: dict[type[inspect.Type], str] = {
    **{inspect.StrType: "text", inspect.IntType: "a whole number", inspect.FloatType: "a number"},
    **{inspect.BoolType: "true or false", inspect.ListType: "a list"},
    **{inspect.DictType: "an object", inspect.StructType: "an object"},
}
_ACCEPTING: dict[type, tuple[type[inspect.Type], ...]] = {  # the types that may accept a JSON value, by its Python type
    type(None): (inspect.NoneType, inspect.AnyType),
    str: (inspect.StrType, inspect.LiteralType, inspect.AnyType),
    bool: (inspect.BoolType, inspect.AnyType),
    int: (inspect.IntType, inspect.FloatType, inspect.AnyType),
    float: (inspect.FloatType, inspect.AnyType),
    list: (inspect.ListType, inspect.AnyType),
    dict: (inspect.StructType, inspect.DictType, inspect.AnyType),
}


def unsupported(why: str, *texts: str, must_be: str = "") -> Meta:
    """Annotate a field. Strings in `texts` are reported as unsupported, with the reason `why`. If `texts` is empty,
    this applies to every string that the type does not allow. Other values are reported as invalid."""
    return Meta(extra={"unsupported": why, "texts": texts, "must_be": must_be})


def never_missing(limit: str, **more: Any) -> Meta:
    """Annotate a required field that is reported as invalid, rather than missing, if it is left out."""
    return Meta(extra={"must_be": limit, "never_missing": limit}, **more)


def only(why: str, *allowed: Any) -> Meta:
    """Annotate a field of the vendor's API. Only the values in `allowed` are supported, for the reason `why`."""
    return Meta(extra_json_schema={"enum": [None, *allowed]}, extra={"only": (why, allowed)})


def number_limits(field: str, **changed: Any) -> Meta:
    """Annotate a number with the range that the request validator allows for a wire field. The schema has the range
    under `RANGE_KEY`, because msgspec would replace ordinary bounds with those of `Int64`."""
    limits = RANGES[field]._replace(**changed)
    found = {"exclusiveMinimum" if limits.open else "minimum": limits.least, "maximum": limits.most}
    return Meta(extra_json_schema={RANGE_KEY: {"anyOf": [{"const": 0}, found]} if limits.or_zero else found})


def text_limits(field: str, least: int = 0) -> Meta:
    return Meta(extra_json_schema={"minLength": least, "maxLength": SIZES[field]})


def list_limits(field: str, least: int = 0) -> Meta:
    return Meta(extra_json_schema={"minItems": least, "maxItems": COUNTS[field]})


_type_info = cache(inspect.type_info)  # takes a millisecond for a large struct


@cache
def _restricted_fields(kind: type[Struct]) -> list[tuple[str, str, Sequence[Any]]]:
    """Return the name, the reason and the allowed values of every field that is annotated with `only`."""
    info: Any = _type_info(kind)
    fields = [(each.name, getattr(each.type, "extra", None) or {}) for each in info.fields]
    return [(name, *extra["only"]) for name, extra in fields if "only" in extra]


def check_supported(struct: Struct, where: str = "") -> None:
    """Raises ApiError for the first field with an unsupported value."""
    for name, why, allowed in _restricted_fields(type(struct)):
        value = getattr(struct, name)
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            raise unsupported_field(_join(where, name), why)


def to_struct(body: dict[str, Any], kind: type[_StructT]) -> _StructT:
    """Convert a body to a struct. Raises ApiError for the first invalid field. Ignores null fields, known or not."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError:
        _check(body, _type_info(kind), "")
    try:
        return msgspec.convert(body, kind)  # _check has removed unknown null fields
    except msgspec.ValidationError as error:
        raise ApiError(400, f"the body is invalid: {error}", code="invalid_field") from None


def dump_json(value: Any, where: str) -> str:
    """Serialize a value in the JSON style that models use. Raises ApiError for a number too large for 64 bits."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise invalid_field(where, "JSON with numbers of at most 64 bits", "a larger number") from None


def parse_whole_number(name: str, text: str) -> int:
    """Parse a number from a URL or a header. Raises ApiError for any other text."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise invalid_field(name, "a whole number", shorten(text))
    return int(text)


def _check(value: Any, expected: inspect.Type, where: str, extra: Mapping[str, Any] = _NO_EXTRA) -> None:
    """Check a value, and remove unknown null fields from it. Raises ApiError for the first invalid part."""
    if isinstance(expected, inspect.Metadata):
        _check(value, expected.type, where, {**extra, **(expected.extra or {})})
        return
    options = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    found = [each for each in options if isinstance(_unwrap(each), _ACCEPTING[type(value)])]
    match found[0] if found else None:
        case inspect.Metadata() as chosen:
            _check(value, chosen, where, extra)
        case inspect.StructType():
            _check_object(value, [each for each in found if isinstance(each, inspect.StructType)], where, extra)
        case inspect.ListType() as chosen if len(value) >= (chosen.min_length or 0):
            for index, item in enumerate(value):
                _check(item, chosen.item_type, f"{where}[{index}]")
        case inspect.DictType() as chosen:
            for key, item in value.items():
                _check(key, chosen.key_type, where)
                _check(item, chosen.value_type, _join(where, key))
        case chosen if chosen is None or not _fits(value, chosen):
            texts = extra.get("texts")
            if texts is not None and isinstance(chosen, inspect.LiteralType) and (value in texts or not texts):
                raise unsupported_field(where, f"got {shorten(value)}, but {extra['unsupported']}")
            allowed = [_describe(each, value) for each in options if not isinstance(each, inspect.NoneType)]
            raise invalid_field(where, extra.get("must_be") or " or ".join(allowed), shorten(value))


def _check_object(
    value: dict[str, Any], kinds: Sequence[inspect.StructType], where: str, extra: Mapping[str, Any]
) -> None:
    """Check an object. `kinds` are the structs of a tagged union, or a single struct."""
    kind = kinds[0]
    if kind.tag_field is not None:
        name, tag = _join(where, kind.tag_field), value.get(kind.tag_field)
        tags = {each.tag: each for each in kinds}
        if tag is None:
            raise missing_field(name)
        if not isinstance(tag, str):
            raise invalid_field(name, "text", shorten(tag))
        if tag not in tags:
            raise unsupported_field(name, f"got {shorten(tag)}, but {extra['unsupported']}")
        kind = tags[tag]
    if kind.forbid_unknown_fields:
        _check_unknown(value, kind, where)
    for field in kind.fields:
        item, name = value.get(field.encode_name), _join(where, field.encode_name)
        if item is not None:
            _check(item, field.type, name)
        elif field.required and isinstance(field.type, inspect.StructType):
            _check({}, field.type, name)
        elif field.required:
            limit = (getattr(field.type, "extra", None) or {}).get("never_missing")
            raise missing_field(name) if limit is None else invalid_field(name, limit, shorten(None))


def _check_unknown(value: dict[str, Any], kind: inspect.StructType, where: str) -> None:
    known = [field.encode_name for field in kind.fields]
    for key in [key for key in value if key not in known and key != kind.tag_field]:
        if value[key] is not None:
            if hasattr(kind.cls, "unknown_error"):
                raise kind.cls.unknown_error(where, key, known)
            raise unknown_field(_join(where, key), known if len(known) <= _MAX_LISTED else ())
        del value[key]


def _join(where: str, key: str) -> str:
    return f"{where}.{key[:60]}" if where else key[:60]


def _unwrap(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _fits(value: Any, kind: inspect.Type) -> bool:
    """Whether a scalar of the right JSON type has an allowed value."""
    match kind:
        case inspect.LiteralType():
            return value in kind.values
        case inspect.StrType(pattern=str() as pattern):
            return re.search(pattern, value) is not None
        case inspect.IntType(ge=int() as least, le=int() as most):
            return bool(least <= value <= most)
        case inspect.FloatType():
            return bool(abs(value) < 2**1024)
    return not isinstance(kind, inspect.ListType)


def _describe(kind: inspect.Type, value: Any) -> str:
    if isinstance(kind, inspect.Metadata):
        return (kind.extra or {}).get("must_be") or _describe(kind.type, value)
    if isinstance(kind, inspect.LiteralType):
        return ("one of " if len(kind.values) > 1 else "") + ", ".join(map(str, kind.values))
    name = _NAMES.get(type(kind), "left out")
    if isinstance(kind, inspect.ListType) and isinstance(_unwrap(kind.item_type), inspect.StrType):
        return f"{name} of strings"
    is_large = isinstance(kind, inspect.IntType | inspect.FloatType) and type(value) is int
    return f"{name} of 64 bits" if is_large else name
