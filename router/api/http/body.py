"""Request bodies: read within limits of size and time, and parsed as one strict JSON object."""

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.types import Receive

from octet.rpc.refusal import prompt_too_large
from router.api.http.connection import get_connection, receive_chunks
from router.api.http.errors import RATE_LIMIT, ApiError, invalid_field, refusal_to_error

BODY_TIMEOUT_SECONDS = 20.0
SMALL_BODY_BYTES = 64 << 10  # a body up to this size is always read; larger ones may be refused
_RETRY_SECONDS = 1
_CLOSE = {"connection": "close"}
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""The maximum number of objects, lists, strings, numbers, booleans and nulls at all levels together. An empty list
takes two bytes in a body and about fifty in memory."""
_MAX_QUOTES = 20_000  # with up to this many quotes, cutting out the strings is faster than scanning them
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)(\s*+:)?|[\[\]{}]|[^\s\[\]{},:"]++|[\s,:]++', re.DOTALL)
"""A string, closed or not, with the colon after a key; a bracket; any other value; a run of separators. Every byte is
scanned once, whitespace after a string twice."""
_SEPARATORS = b" \t\n\r\f\v,:"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass
class BodyReader:
    """Reads request bodies and bounds the memory of all bodies being read. Used only on the event loop."""

    _max_bytes: int
    _max_total_bytes: int
    _max_prompt_bytes: int = 0  # for bodies with a prompt: one that is too large holds a prompt that is too long
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
            raise self._too_large(f"{int(length[:20]):,} bytes", is_pending=is_pending)
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
                    raise self._too_large(f"more than {self._max_bytes:,} bytes", is_pending=True)
                if held > SMALL_BODY_BYTES and self._num_bytes > self._max_total_bytes:
                    message = f"the large bodies being read exceed {self._max_total_bytes:,} bytes in total; try again"
                    headers = {**_CLOSE, "retry-after": str(_RETRY_SECONDS)}
                    raise ApiError(429, message, kind=RATE_LIMIT, code="queue_full", headers=headers)
        finally:
            self._num_bytes -= held
        return bytes(body)

    def _too_large(self, got: str, *, is_pending: bool) -> ApiError:
        if self._max_prompt_bytes:
            error = refusal_to_error(prompt_too_large("request", self._max_prompt_bytes, got), {})
            error.headers, error.is_body_pending = _CLOSE, is_pending
            return error
        message = f"the body must be at most {self._max_bytes:,} bytes, got {got}"
        return ApiError(413, message, code="request_too_large", headers=_CLOSE, is_body_pending=is_pending)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a body. Raises ApiError if it is not a JSON object, repeats a key, or exceeds MAX_DEPTH or MAX_VALUES."""
    _check_size(raw)
    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=_unique_keys, parse_constant=_reject_constant)
    except UnicodeDecodeError as error:
        raise _malformed(f"byte 0x{raw[error.start]:02x} at offset {error.start:,} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _malformed(str(error)) from None
    if not isinstance(parsed, dict):
        raise _malformed("the top level must be an object")
    if _SURROGATE_ESCAPE.search(raw):
        _check_surrogates(parsed, "")
    return parsed


def _check_size(raw: bytes) -> None:
    """Raises ApiError if a body is nested too deeply or holds too many values. Whether it is JSON is not checked."""
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
    """Whether the numbers of brackets and commas already show that the body is within the limits."""
    num_opened = raw.count(b"[") + raw.count(b"{")
    return num_opened <= MAX_DEPTH and 1 + num_opened + raw.count(b",") <= MAX_VALUES


def _cut_strings(raw: bytes) -> bytes:
    """Replace every string with an empty one, so that brackets in a prompt do not count as nesting. An unclosed string
    is removed. A body with more than `_MAX_QUOTES` quotes is returned unchanged: cutting it would be slow."""
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
    """Raises ApiError for the first string that cannot be encoded as UTF-8."""
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
