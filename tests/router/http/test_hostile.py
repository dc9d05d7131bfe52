"""A hostile request quickly gets an error in the format of its API, and later requests are still served."""

import asyncio
import gzip
import json
import resource
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, inspect

from octet.limits import MAX_PROMPT_BYTES
from router.api.http import body as strict_json
from router.api.http import server as protocol
from router.api.http.body import MAX_DEPTH, MAX_VALUES, SMALL_BODY_BYTES, parse_object
from router.api.http.errors import ApiError
from router.api.http.fields import to_struct
from router.routing.validation import REQUEST_BYTES
from tests.patience import PATIENCE
from tests.router.http.harness import HELLO, HttpHarness, running_http_router
from tests.specialist.server.harness import running_replica, sim

MAX_CPU_SECONDS = 2.0  # CPU time of this process. Each body takes less than 0.1 s.
GOOD = json.dumps({"model": "octet/writer", "messages": HELLO, "max_tokens": 4}).encode()
BODIES = {
    "nothing": b"",
    "no JSON": b"hello",
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
    "two keys": b'{"model": "octet", "model": "octet/writer"}',
    "two keys within": b'{"model": "octet", "messages": [{"role": "user", "role": "user", "content": "x"}]}',
    "NaN": b'{"model": "octet/writer", "messages": [], "temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "no UTF-8": b'{"model": "\xff"}',
    "UTF-16": '{"model": "octet"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "an open string": b'{"model": "' + b'\\"' * 1_000_000,
    "open brackets": b"[" * 1_000_000,
    "deep": b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    "many values": b'{"a": [' + b"[]," * 1_000_000 + b"[]]}",
    "keys of keys": b'{"a":' * 5 + b'"a":' * 1_000_000,
    "closed brackets": b"]" * 4_000_000,
    "blanks": b'{"a"' + b" " * 4_000_000,
    "blanks between values": b'{"a":[' + b"[]," * 33 + b" " * 3_000_000 + b"]}",
    "colons": b'{"a":[' + b"[]," * 33 + b":" * 3_000_000 + b"1]}",
    "commas": b'{"a":[' + b"," * 3_000_000 + b"1]}",
    "many keys": b"{" + b",".join(b'"%d":1' % index for index in range(100_000)) + b"}",
    "many keys, one twice": b"{"
    + b",".join(b'"%d":1' % index for index in [*range(MAX_VALUES - 2), MAX_VALUES - 3])
    + b"}",
    "a long number": b'{"seed": ' + b"9" * 100_000 + b"}",
    "half a surrogate pair": b'{"model": "octet/writer", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "half a surrogate pair as a key": GOOD[:-1] + b', "octet": {"\\ud800": 1}}',
    "more behind it": GOOD + b"{}",
}


async def test_pipelined_large_requests_are_served_in_order() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        padded = GOOD[:-1] + b" " * 200_000 + b"}"
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
        one = head + f"content-length: {len(padded)}\r\n\r\n".encode() + padded
        last = b"GET /healthz HTTP/1.1\r\nhost: octet\r\nconnection: close\r\n\r\n"
        response = await fronted.raw(one + one + last)
        assert response.status == 200 and response.body.count(b"HTTP/1.1 200 OK") == 2


async def is_well(fronted: HttpHarness) -> None:
    assert (await fronted.post(GOOD)).status == 200


async def test_invalid_body_is_refused_at_once() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        for name, body in BODIES.items():
            async with asyncio.timeout(PATIENCE):
                began = time.process_time()
                response = await fronted.post(body)
            assert time.process_time() - began < MAX_CPU_SECONDS, name
            assert response.status == 400, name
            assert response.error["message"] and len(response.body) < 1000, name
            assert len(response.headers["x-request-id"]) == 32
        await is_well(fronted)
        assert len(fronted.routed.server.live) == 0


async def test_invalid_wait_is_refused_and_a_long_one_is_cut() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        for wait in ("", "soon", "-1", "1.5", "1e3", "x" * 5000):
            response = await fronted.post(GOOD, octet_wait_ms=wait)
            assert (response.status, response.error["param"]) == (400, "octet-wait-ms"), wait
            assert len(response.body) < 1000
        for wait in ("0", "30000", "9" * 5000):
            assert (await fronted.post(GOOD, octet_wait_ms=wait)).status == 200, wait[:10]


def test_schema_is_built_once_for_all_invalid_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Body(Struct):
        seed: int

    built: list[Any] = []
    build = inspect.multi_type_info

    def count_builds(kinds: list[Any]) -> Any:
        built.append(kinds)
        return build(kinds)

    monkeypatch.setattr(inspect, "multi_type_info", count_builds)
    for _ in range(2):
        with pytest.raises(ApiError):
            to_struct({"seed": "x"}, Body)
    assert built == [[Body]]


class CountingKey(str):
    """A key that counts all comparisons of keys, and fails if there are more than `limit`."""

    num_comparisons = 0
    limit = 0

    def __eq__(self, other: object) -> bool:
        type(self).num_comparisons += 1
        assert self.num_comparisons <= self.limit, "the search for duplicate keys is not linear"
        return str.__eq__(self, other)

    __hash__ = str.__hash__


async def test_duplicate_key_in_a_large_body_is_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body has as many keys as the server allows. Comparing all pairs of keys took 17 s."""
    num_keys = MAX_VALUES - 1
    body = b"{" + b",".join(b'"%d":0' % index for index in range(num_keys - 1)) + b',"%d":0}' % (num_keys - 2)
    find_duplicates = strict_json._unique_keys

    def count_comparisons(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return find_duplicates([(CountingKey(key), value) for key, value in pairs])

    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        with monkeypatch.context() as patched:
            patched.setattr(strict_json, "_unique_keys", count_comparisons)
            patched.setattr(CountingKey, "limit", 4 * num_keys)
            answer = await fronted.post(body)
        assert (answer.status, answer.error["code"]) == (400, "malformed")
        assert f"'{num_keys - 2}'" in answer.error["message"]
        await is_well(fronted)


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_depth_and_value_limits_are_exact(depth: int) -> None:
    deep = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    many = b'{"a":["[,,]"' + b",0" * (MAX_VALUES - 3 + depth - MAX_DEPTH) + b"]}"
    for raw in (deep, many):
        if depth == MAX_DEPTH:
            assert set(parse_object(raw)) == {"a"}
        else:
            with pytest.raises(ApiError):
                parse_object(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def num_values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(num_values, inner))


TEXTS = st.text(max_size=4) | st.text('a"\\[]{},:', max_size=8)


@given(st.dictionaries(TEXTS, JSON | TEXTS, max_size=4), st.booleans(), st.sampled_from([None, 1]), st.booleans())
def test_value_limit_counts_json_values(body: dict[str, Any], escapes: bool, indent: int | None, cut: bool) -> None:
    raw = json.dumps(body, ensure_ascii=escapes, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strict_json, "_MAX_QUOTES", len(raw) if cut else 0)
        patched.setattr(strict_json, "MAX_VALUES", num_values(body))
        assert parse_object(raw) == body
        patched.setattr(strict_json, "MAX_VALUES", num_values(body) - 1)
        with pytest.raises(ApiError, match="more than"):
            parse_object(raw)


def test_separators_between_values_are_one_token() -> None:
    marks = [mark[0][:1] for mark in strict_json._TOKENS.finditer(b"[1" + b" ,:\n" * 1000 + b"2]")]
    assert marks == [b"[", b"1", b" ", b"2", b"]"]


@pytest.mark.parametrize("most_quotes", [0, 100_000])
def test_brackets_and_quotes_in_a_prompt_are_text(most_quotes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "_MAX_QUOTES", most_quotes)
    prompt = 'a[0] = "\\"; b["c"] = \'{\';\\' * 1000
    deep = b"[" * (MAX_DEPTH + 1)
    raw = json.dumps({"prompt": prompt}).encode()
    assert parse_object(raw) == {"prompt": prompt}
    with pytest.raises(ApiError, match="deeper than"):
        parse_object(raw[:-1] + b',"deep":' + deep + b"}")


async def test_oversized_body_is_a_prompt_that_is_too_long_and_never_buffered() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        most = 2 * REQUEST_BYTES
        large = GOOD[:-1] + b" " * most + b"}"
        response = await fronted.post(large)
        assert (response.status, response.headers["connection"]) == (400, "close")
        assert f"at most {MAX_PROMPT_BYTES:,} bytes" in response.error["message"]
        chunked = b"%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"
        response = await fronted.send(
            "POST",
            "/v1/completions",
            chunked,
            {"content-type": "application/json", "transfer-encoding": "chunked"},
        )
        assert (response.status, response.code) == (400, "context_length_exceeded")
        asked = {"content-type": "application/json", "content-length": str(10**15), "expect": "100-continue"}
        assert (await fronted.send("POST", "/v1/completions", b"", asked)).status == 400
        texts = [{"role": "user", "content": "x" * (most // 2)}]
        response = await fronted.ask(messages=texts)
        assert response.status == 400, "the request is too large for protobuf, but not for HTTP"
        await is_well(fronted)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/infer", "/v1/jobs"])
async def test_oversized_body_is_refused_before_it_arrives(path: str) -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        head = f"POST {path} HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
        sent = (head + f"content-length: {10**9}\r\n\r\n").encode() + b"{"
        async with fronted.connected(sent) as reader, asyncio.timeout(PATIENCE):
            result = await reader.readuntil(b"context_length_exceeded")
        assert result.startswith(b"HTTP/1.1 400 ") and b"connection: close" in result


async def test_only_json_bodies_are_accepted() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
            response = await fronted.post(GOOD, **{"content-type": kind})
            assert response.status == 415 and "application/json" in response.error["message"]
        response = await fronted.post(GOOD, **{"content-type": "Application/JSON; charset=utf-8"})
        assert response.status == 200
        assert (await fronted.post(GOOD, content_encoding="identity")).status == 200
        packed = await fronted.post(gzip.compress(GOOD), content_encoding="gzip")
        assert (packed.status, packed.error["param"]) == (415, "content-encoding")
        assert packed.headers["accept-encoding"] == "identity" and "'gzip'" in packed.error["message"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}", 400),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 100_000, 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", 431),
    ],
)
async def test_bytes_that_are_not_http_are_refused_and_disconnected(sent: bytes, status: int) -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        response = await fronted.raw(sent)
        assert response.status == status and response.error["type"] == "invalid_request_error"
        await is_well(fronted)


HALVES = [
    b"",
    b"\r\n",
    b"POST /v1/chat/completions HTT",
    b"GET /healthz HTTP/1.1\r\nhost: octet\r\n\r\nGET",
]


@pytest.mark.parametrize("sent", HALVES)
async def test_unfinished_head_times_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_SECONDS", 0.3)
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        response = await fronted.raw(sent)
        assert b"408" in response.body or response.status == 408


async def test_unfinished_body_times_out() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        fronted.app._bodies._seconds = 0.3
        response = await fronted.post(GOOD, **{"content-length": "1000"})
        assert (response.status, response.error["code"]) == (408, "request_timeout")
        assert fronted.app._bodies._num_bytes == 0
        fronted.app._bodies._max_total_bytes = 10
        response = await fronted.post(GOOD[:-1] + b" " * SMALL_BODY_BYTES + b"}")
        assert (response.status, response.error["type"]) == (429, "rate_limit_error")
        assert response.headers["retry-after"] == "1"
        assert fronted.app._bodies._num_bytes == 0
        await is_well(fronted)


async def test_complete_body_is_read_without_a_timeout() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        fronted.app._bodies._seconds = 0.0
        assert (await fronted.post(GOOD)).status == 200
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
        whole = head + b"content-length: %d\r\n" % len(GOOD)
        in_parts = head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n%x\r\n%b\r\n" % (len(GOOD), GOOD)
        response = await fronted.raw(whole + b"\r\n" + GOOD + in_parts + b"0\r\n\r\n")
        # The second response follows in the body.
        assert response.status == 200 and response.body.count(b"HTTP/1.1 200") == 1
        response = await fronted.raw(in_parts)
        assert (response.status, response.error["code"]) == (408, "request_timeout")
        fronted.app._bodies._seconds = 20.0
        reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
        for sent in (whole + b"connection: close\r\n\r\n", GOOD[:9], GOOD[9:]):
            writer.write(sent)
            await asyncio.sleep(0.02)
        assert b"HTTP/1.1 200" in await reader.read()
        writer.close()


async def test_half_open_connections_do_not_block_other_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_SECONDS", 2 * PATIENCE)
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        count = min(200, most // 2)
        opened = [await asyncio.open_connection("127.0.0.1", fronted.port) for _ in range(count)]
        for _, writer in opened:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 99\r\n")
        async with asyncio.timeout(PATIENCE):
            began = time.process_time()
            await is_well(fronted)
            assert (await fronted.get("/healthz")).status == 200
        assert time.process_time() - began < MAX_CPU_SECONDS
        for _, writer in opened:
            writer.close()
