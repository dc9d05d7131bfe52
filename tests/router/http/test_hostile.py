"""Bytes from anybody: an answer in the envelope, soon, and nothing of it harms the next caller."""

import asyncio
import gzip
import json
import resource
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http import protocol, strict_json
from router.http.body import SMALL_BYTES
from router.http.fault import Fault
from router.http.strict_json import MOST_DEPTH, MOST_VALUES, parse_object
from tests.router.http.harness import HELLO, Fronted, fronting
from tests.service.harness import run, serving, sim

SOON = 2.0
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
    "a long number": b'{"seed": ' + b"9" * 100_000 + b"}",
    "half a surrogate pair": b'{"model": "octet/writer", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "half a surrogate pair as a key": GOOD[:-1] + b', "octet": {"\\ud800": 1}}',
    "more behind it": GOOD + b"{}",
}


def test_requests_on_one_connection_are_served_one_by_one_however_large() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            padded = GOOD[:-1] + b" " * 200_000 + b"}"
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
            one = head + f"content-length: {len(padded)}\r\n\r\n".encode() + padded
            last = b"GET /healthz HTTP/1.1\r\nhost: octet\r\nconnection: close\r\n\r\n"
            heard = await fronted.raw(one + one + last)
            assert heard.status == 200 and heard.body.count(b"HTTP/1.1 200 OK") == 2

    run(story())


async def is_well(fronted: Fronted) -> None:
    assert (await fronted.post(GOOD)).status == 200


def test_a_body_that_is_no_request_is_told_so_at_once() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            for name, body in BODIES.items():
                began = time.monotonic()
                heard = await fronted.post(body)
                assert heard.status == 400, name
                assert heard.error["message"] and len(heard.body) < 1000, name
                assert time.monotonic() - began < SOON, name
                assert len(heard.headers["x-request-id"]) == 32
            await is_well(fronted)
            assert len(fronted.routed.server.live) == 0

    run(story())


@pytest.mark.parametrize("depth", [MOST_DEPTH, MOST_DEPTH + 1])
def test_how_deep_and_how_many_is_counted_to_the_last(depth: int) -> None:
    deep = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    many = b'{"a":["[,,]"' + b",0" * (MOST_VALUES - 3 + depth - MOST_DEPTH) + b"]}"
    for raw in (deep, many):
        if depth == MOST_DEPTH:
            assert set(parse_object(raw)) == {"a"}
        else:
            with pytest.raises(Fault):
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
def test_values_are_what_is_counted(body: dict[str, Any], escapes: bool, indent: int | None, cut: bool) -> None:
    raw = json.dumps(body, ensure_ascii=escapes, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strict_json, "_MOST_QUOTES", len(raw) if cut else 0)
        patched.setattr(strict_json, "MOST_VALUES", num_values(body))
        assert parse_object(raw) == body
        patched.setattr(strict_json, "MOST_VALUES", num_values(body) - 1)
        with pytest.raises(Fault, match="more than"):
            parse_object(raw)


def test_what_stands_between_values_is_one_mark_however_long() -> None:
    marks = [mark[0][:1] for mark in strict_json._MARKS.finditer(b"[1" + b" ,:\n" * 1000 + b"2]")]
    assert marks == [b"[", b"1", b" ", b"2", b"]"]


@pytest.mark.parametrize("most_quotes", [0, 100_000])
def test_brackets_and_quotes_in_a_prompt_are_text(most_quotes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "_MOST_QUOTES", most_quotes)
    prompt = 'a[0] = "\\"; b["c"] = \'{\';\\' * 1000
    deep = b"[" * (MOST_DEPTH + 1)
    raw = json.dumps({"prompt": prompt}).encode()
    assert parse_object(raw) == {"prompt": prompt}
    with pytest.raises(Fault, match="deeper than"):
        parse_object(raw[:-1] + b',"deep":' + deep + b"}")


def test_what_is_too_large_is_413_and_never_held_whole() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            most = 2 * fronted.routed.server.service.reception.limits.request_bytes
            large = GOOD[:-1] + b" " * most + b"}"
            heard = await fronted.post(large)
            assert (heard.status, heard.headers["connection"]) == (413, "close")
            assert f"{most:,} bytes" in heard.error["message"]
            chunked = b"%x\r\n" % len(large) + large + b"\r\n0\r\n\r\n"
            heard = await fronted.send(
                "POST",
                "/v1/completions",
                chunked,
                {"content-type": "application/json", "transfer-encoding": "chunked"},
            )
            assert heard.status == 413
            asked = {"content-type": "application/json", "content-length": str(10**15), "expect": "100-continue"}
            assert (await fronted.send("POST", "/v1/completions", b"", asked)).status == 413
            texts = [{"role": "user", "content": "x" * (most // 2)}]
            heard = await fronted.ask(messages=texts)
            assert heard.status == 413, "too large for the router's own wire, though not for the door"
            await is_well(fronted)

    run(story(), 120)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/infer", "/v1/jobs"])
def test_what_would_be_too_large_is_told_so_before_it_has_come(path: str) -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            head = f"POST {path} HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
            sent = (head + f"content-length: {10**9}\r\n\r\n").encode() + b"{"
            async with fronted.connected(sent) as reader, asyncio.timeout(3):
                told = await reader.readuntil(b"request_too_large")
            assert told.startswith(b"HTTP/1.1 413 ") and b"connection: close" in told

    run(story())


def test_only_json_is_read() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
                heard = await fronted.post(GOOD, **{"content-type": kind})
                assert heard.status == 415 and "application/json" in heard.error["message"]
            heard = await fronted.post(GOOD, **{"content-type": "Application/JSON; charset=utf-8"})
            assert heard.status == 200
            assert (await fronted.post(GOOD, content_encoding="identity")).status == 200
            packed = await fronted.post(gzip.compress(GOOD), content_encoding="gzip")
            assert (packed.status, packed.error["param"]) == (415, "content-encoding")
            assert packed.headers["accept-encoding"] == "identity" and "'gzip'" in packed.error["message"]

    run(story())


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
def test_what_is_no_http_is_told_so_and_cut_off(sent: bytes, status: int) -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            heard = await fronted.raw(sent)
            assert heard.status == status and heard.error["type"] == "invalid_request_error"
            await is_well(fronted)

    run(story())


HALVES = [
    b"",
    b"\r\n",
    b"POST /v1/chat/completions HTT",
    b"GET /healthz HTTP/1.1\r\nhost: octet\r\n\r\nGET",
]


@pytest.mark.parametrize("sent", HALVES)
def test_a_head_that_never_ends_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)

    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            heard = await fronted.raw(sent)
            assert b"408" in heard.body or heard.status == 408

    run(story())


def test_a_body_that_never_ends_is_not_waited_for() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            fronted.app._bodies._seconds = 0.3
            heard = await fronted.post(GOOD, **{"content-length": "1000"})
            assert (heard.status, heard.error["code"]) == (408, "request_timeout")
            assert fronted.app._bodies._num_bytes == 0
            fronted.app._bodies._most_together = 10
            heard = await fronted.post(GOOD[:-1] + b" " * SMALL_BYTES + b"}")
            assert (heard.status, heard.error["type"]) == (429, "rate_limit_error")
            assert heard.headers["retry-after"] == "1"
            assert fronted.app._bodies._num_bytes == 0
            await is_well(fronted)

    run(story())


def test_a_body_that_is_there_is_read_without_a_clock() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            fronted.app._bodies._seconds = 0.0
            assert (await fronted.post(GOOD)).status == 200
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
            whole = head + b"content-length: %d\r\n" % len(GOOD)
            in_parts = head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n%x\r\n%b\r\n" % (len(GOOD), GOOD)
            heard = await fronted.raw(whole + b"\r\n" + GOOD + in_parts + b"0\r\n\r\n")
            assert heard.status == 200 and heard.body.count(b"HTTP/1.1 200") == 1  # behind the first
            heard = await fronted.raw(in_parts)
            assert (heard.status, heard.error["code"]) == (408, "request_timeout")
            fronted.app._bodies._seconds = 20.0
            reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
            for sent in (whole + b"connection: close\r\n\r\n", GOOD[:9], GOOD[9:]):
                writer.write(sent)
                await asyncio.sleep(0.02)
            assert b"HTTP/1.1 200" in await reader.read()
            writer.close()

    run(story())


def test_hundreds_of_half_open_connections_keep_nobody_from_being_served() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
            count = min(200, most // 2)
            opened = [await asyncio.open_connection("127.0.0.1", fronted.port) for _ in range(count)]
            for _, writer in opened:
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 99\r\n")
            began = time.monotonic()
            await is_well(fronted)
            assert (await fronted.get("/healthz")).status == 200
            assert time.monotonic() - began < SOON
            for _, writer in opened:
                writer.close()

    run(story())
