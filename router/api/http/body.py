"""Request bodies: read within limits of size and time, parsed as one strict JSON object, converted to a msgspec struct.

Errors state the field, what is allowed and what was received.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect
from starlette.requests import Request
from starlette.types import Receive

from octet.limits import shorten
from router.api.http.connection import get_connection, receive_chunks
from router.api.http.errors import RATE_LIMIT, ApiError, invalid_field, missing_field, unknown_field, unsupported_field
from router.routing.validation import COUNTS, RANGES, SIZES

BODY_TIMEOUT_SECONDS = 20.0
SMALL_BODY_BYTES = 64 << 10  # a body up to this size is always read; only larger ones may have to wait
_RETRY_SECONDS = 1
_CLOSE = {"connection": "close"}
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""Objects, lists, strings, numbers, booleans and nulls at every level. One byte of an empty list takes fifty bytes of
memory."""
_MAX_QUOTES = 20_000  # with up to this many quotes, cutting out the strings is faster than scanning them
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)(\s*+:)?|[\[\]{}]|[^\s\[\]{},:"]++|[\s,:]++', re.DOTALL)
"""A string, closed or not, with the colon after a key; a bracket; any other value; a run of separators. Every byte is
scanned once, blanks after a string twice."""
_SEPARATORS = b" \t\n\r\f\v,:"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
RANGE_KEY = "x-range"
_MAX_LISTED = 16  # known fields that an error lists

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


@dataclass
class BodyReader:
    """Reads request bodies and bounds the memory of all bodies being read. Belongs to the event loop."""

    _max_bytes: int
    _max_total_bytes: int
    _seconds: float = BODY_TIMEOUT_SECONDS
    _num_bytes: int = 0

    async def read_object(self, request: Request) -> dict[str, Any]:
        return parse_object(await self._read(request))

    async def _read(self, request: Request) -> bytes:
        headers = request.headers
        content_type = headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            message = f"content-type must be application/json, got {content_type[:60]!r}"
            raise ApiError(415, message, code="unsupported_media_type", headers=_CLOSE)
        encoding = headers.get("content-encoding", "")
        if encoding.strip().lower() not in ("", "identity"):
            name = "content-encoding"
            message = f"{name} must be left out, because bodies are not decompressed, got {encoding[:60]!r}"
            more = {**_CLOSE, "accept-encoding": "identity"}
            raise ApiError(415, message, param=name, code="unsupported_media_type", headers=more)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_bytes:
            is_pending = headers.get("expect", "").lower() != "100-continue"
            raise self._too_large(f"{int(length[:20]):,}", is_pending=is_pending)
        if get_connection(request.scope).has_body():
            return await self._receive(request.receive)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._receive(request.receive)
        except TimeoutError:
            message = f"the body did not arrive within {self._seconds:g} s"
            raise ApiError(408, message, code="request_timeout", headers=_CLOSE) from None

    async def _receive(self, receive: Receive) -> bytes:
        body = bytearray()
        held = 0
        try:
            async for chunk in receive_chunks(receive):
                body += chunk
                held += len(chunk)
                self._num_bytes += len(chunk)
                if held > self._max_bytes:
                    body.clear()
                    raise self._too_large("more", is_pending=True)
                if held > SMALL_BODY_BYTES and self._num_bytes > self._max_total_bytes:
                    message = f"large request bodies being read exceed {self._max_total_bytes:,} bytes"
                    headers = {**_CLOSE, "retry-after": str(_RETRY_SECONDS)}
                    raise ApiError(429, message, kind=RATE_LIMIT, code="queue_full", headers=headers)
        finally:
            self._num_bytes -= held
        return bytes(body)

    def _too_large(self, got: str, *, is_pending: bool) -> ApiError:
        message = f"the body must be at most {self._max_bytes:,} bytes, got {got}"
        return ApiError(413, message, code="request_too_large", headers=_CLOSE, is_body_pending=is_pending)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Raise ApiError early for a body that is too deep, too large, ambiguous or not JSON."""
    _check_size(raw)
    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=_unique_keys, parse_constant=_reject_constant)
    except UnicodeDecodeError as error:
        raise _malformed(f"byte 0x{raw[error.start]:02x} at {error.start:,} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _malformed(str(error)) from None
    if not isinstance(parsed, dict):
        raise _malformed("the top level must be an object in braces")
    if _SURROGATE_ESCAPE.search(raw):
        _check_surrogates(parsed, "")
    return parsed


def _check_size(raw: bytes) -> None:
    """Limit depth and number of values. Text that is not JSON is left to the parser, which reports the position."""
    outline = _cut_strings(raw)
    if _is_surely_small(outline):
        return
    depth = num_values = num_keys = 0
    for token in _TOKENS.finditer(outline):
        first = outline[token.start()]
        if first in _SEPARATORS:
            continue
        depth += (first in b"[{") - (first in b"]}")
        if token[1]:
            num_keys += 1
        elif first not in b"]}":
            num_values += 1
        if depth > MAX_DEPTH:
            raise _malformed(f"it is nested deeper than {MAX_DEPTH} levels")
        if num_values > MAX_VALUES:
            raise _malformed(f"it holds more than {MAX_VALUES:,} values")
        if depth < 0 or num_keys > num_values:
            return


def _is_surely_small(raw: bytes) -> bool:
    """Estimate by counting bytes: every value follows an opening bracket or a comma."""
    num_opened = raw.count(b"[") + raw.count(b"{")
    return num_opened <= MAX_DEPTH and 1 + num_opened + raw.count(b",") <= MAX_VALUES


def _cut_strings(raw: bytes) -> bytes:
    """Return the body with all strings empty, so that brackets in a prompt do not count as depth. This is ten times as
    fast as a scan. An unclosed string is left out."""
    if raw.count(b'"') > _MAX_QUOTES:
        return raw
    outside: list[bytes] = []
    is_inside = False
    for part in raw.split(b'"'):
        if not is_inside:
            outside.append(part)
            is_inside = True
        elif not part.endswith(b"\\") or (len(part) - len(part.rstrip(b"\\"))) % 2 == 0:
            is_inside = False
    return b'""'.join(outside)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:60]!r} appears twice in one object")
            seen.add(key)
    return found


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _check_surrogates(value: Any, where: str) -> None:
    """Raise ApiError for the first string that cannot be encoded as UTF-8."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid_field(where, "text that can be encoded as UTF-8", "half of a surrogate pair") from None
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_surrogates(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_surrogates(key, f"a key of {where}" if where else "a key of the body")
            _check_surrogates(item, f"{where}.{key}" if where else key)


def _malformed(why: str) -> ApiError:
    return ApiError(400, f"the body is not a valid JSON object: {why}", code="malformed")


def unsupported(why: str, *texts: str, must_be: str = "") -> Meta:
    """Annotate the type of a field: the listed texts, or all but those of the type, are not supported for the reason
    `why`. Every other value is invalid."""
    return Meta(extra={"unsupported": why, "texts": texts, "must_be": must_be})


def never_missing(limit: str, **more: Any) -> Meta:
    """Annotate a required field that is reported as invalid if it is missing."""
    return Meta(extra={"must_be": limit, "never_missing": limit}, **more)


def only(why: str, *allowed: Any) -> Meta:
    """Annotate a field of the vendor's API that supports only `allowed` here, for the reason `why`."""
    return Meta(extra_json_schema={"enum": [None, *allowed]}, extra={"only": (why, allowed)})


def number_limits(field: str, **changed: Any) -> Meta:
    """Annotate a number with the range of a wire field. The request validator checks it; the schema publishes it under
    a key of its own, because msgspec would replace its bounds by those of `Int64`."""
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
    """Return the name, reason and allowed values of each field of a struct that is annotated by `only`."""
    info: Any = _type_info(kind)
    fields = [(each.name, getattr(each.type, "extra", None) or {}) for each in info.fields]
    return [(name, *extra["only"]) for name, extra in fields if "only" in extra]


def check_supported(struct: Struct, where: str = "") -> None:
    """Raise ApiError for the first field with an unsupported value."""
    for name, why, allowed in _restricted_fields(type(struct)):
        value = getattr(struct, name)
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            raise unsupported_field(_join(where, name), why)


def to_struct(body: dict[str, Any], kind: type[_StructT]) -> _StructT:
    """Raise ApiError for the first invalid field. A null field counts as left out, even an unknown one."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError:
        _check(body, _type_info(kind), "")
    try:
        return msgspec.convert(body, kind)  # _check has removed unknown null fields
    except msgspec.ValidationError as error:
        raise ApiError(400, f"the body is invalid: {error}", code="invalid_field") from None


def dump_json(value: Any, where: str) -> str:
    """Write JSON as a model would. Raise ApiError for a number beyond 64 bits."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise invalid_field(where, "JSON with numbers of 64 bits", "a larger number") from None


def parse_whole_number(name: str, text: str) -> int:
    """Parse a number from a URL or a header. Raise ApiError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise invalid_field(name, "a whole number", shorten(text))
    return int(text)


def _check(value: Any, expected: inspect.Type, where: str, extra: Mapping[str, Any] = _NO_EXTRA) -> None:
    """Raise ApiError for the first invalid part of the value, and remove unknown null fields."""
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
                raise unsupported_field(where, f"{extra['unsupported']}, got {shorten(value)}")
            allowed = [_describe(each, value) for each in options if not isinstance(each, inspect.NoneType)]
            raise invalid_field(where, extra.get("must_be") or " or ".join(allowed), shorten(value))


def _check_object(
    value: dict[str, Any], kinds: Sequence[inspect.StructType], where: str, extra: Mapping[str, Any]
) -> None:
    """`kinds` are the structs of a tagged union, or a single struct."""
    kind = kinds[0]
    if kind.tag_field is not None:
        name, tag = _join(where, kind.tag_field), value.get(kind.tag_field)
        tags = {each.tag: each for each in kinds}
        if tag is None:
            raise missing_field(name)
        if not isinstance(tag, str):
            raise invalid_field(name, "text", shorten(tag))
        if tag not in tags:
            raise unsupported_field(name, f"{extra['unsupported']}, got {shorten(tag)}")
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
    """Whether a scalar of the right JSON type is in range."""
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
        return f"{name} of texts"
    is_large = isinstance(kind, inspect.IntType | inspect.FloatType) and type(value) is int
    return f"{name} of 64 bits" if is_large else name
