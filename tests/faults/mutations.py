"""Mutated real requests. A seed and a number identify each case."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2, operator_pb2
from octet.v1 import specialist_pb2 as own_wire

Spoil = Callable[[bytes, Random], bytes]
_BOUNDED: dict[str, Any] = {"max_tokens": 4, "timeout_ms": 2000, "force_specialists": ["writer"]}
_REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@dataclass(frozen=True, slots=True)
class Case:
    door: str
    """Where the case is sent: `router` or `replica` over gRPC, or `http`."""
    method: str
    """The gRPC method or the HTTP path."""
    sent: bytes

    def __str__(self) -> str:
        return f"{self.door} {self.method} {self.sent[:400]!r}"


def _inference() -> list[tuple[str, Any]]:
    plain = wire.InferRequest(prompt="a question", **_BOUNDED)
    full = wire.InferRequest(
        request_id="mine",
        messages=[
            wire.Message(role="system", content="be brief"),
            wire.Message(role="user", content="why? \u00e4\u20ac"),
        ],
        stop=["ab", "cd"],
        priority=2,
        seed=9,
        min_tokens=1,
        session_id="s",
        user_id="u",
        tenant_salt=b"salt",
        metadata={"k": "v"},
        sampling=wire.Sampling(temperature=0.5, top_p=0.9, top_k=4, logit_bias=[wire.LogitBias(token=3, bias=1.5)]),
        structure=wire.Structure(choice=wire.Choices(choices=["yes", "no"])),
        **_BOUNDED,
    )
    tools = wire.InferRequest(
        messages=[wire.Message(role="user", content="use it")],
        tools=[wire.Tool(name="look", description="looks", parameters='{"type": "object"}')],
        **_BOUNDED,
    )
    names = ("Generate", "Infer", "Route", "CountTokens")
    asked = [(f"/octet.v1.Inference/{name}", request) for name in names for request in (plain, full, tools)]
    return [
        *asked,
        ("/octet.v1.Inference/GetReceipt", wire.GetReceiptRequest(request_id="mine")),
        ("/octet.v1.Inference/Cancel", wire.CancelRequest(request_id="mine")),
    ]


def _others() -> list[tuple[str, Any]]:
    """Return requests to the router's other services: jobs, reads by an operator, health and reflection."""
    job = jobs_pb2.SubmitJobRequest(request=wire.InferRequest(prompt="later", **_BOUNDED), idempotency_key="k")
    return [
        ("/octet.v1.Jobs/SubmitJob", job),
        ("/octet.v1.Jobs/GetJob", jobs_pb2.GetJobRequest(id="0" * 32)),
        ("/octet.v1.Jobs/ListJobs", jobs_pb2.ListJobsRequest()),
        ("/octet.v1.Operator/ListAudit", operator_pb2.ListAuditRequest()),
        ("/octet.v1.Operator/ListReceipts", operator_pb2.ListReceiptsRequest()),
        ("/octet.v1.Operator/GetOverview", operator_pb2.GetOverviewRequest()),
        ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="octet.v1.Inference")),
        (_REFLECT, reflection_pb2.ServerReflectionRequest(list_services="")),
    ]


def _replicas() -> list[tuple[str, Any]]:
    sampling = own_wire.Sampling(temperature=0.5, top_k=4, logit_bias=[own_wire.LogitBias(token=3, bias=1.5)])
    chat = own_wire.Chat(messages=[own_wire.Message(role="user", content="hello")])
    asked = own_wire.GenerateRequest(request_id="mine", text="words", max_tokens=4, timeout_ms=2000, sampling=sampling)
    talk = own_wire.GenerateRequest(chat=chat, max_tokens=4, timeout_ms=2000, stop=["ab"], session_key=b"key")
    return [
        ("/octet.v1.Specialist/Generate", asked),
        ("/octet.v1.Specialist/Generate", talk),
        ("/octet.v1.Specialist/CountTokens", talk),
        ("/octet.v1.Specialist/Describe", own_wire.DescribeRequest()),
        ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="octet.v1.Specialist")),
        (_REFLECT, reflection_pb2.ServerReflectionRequest(list_services="")),
    ]


_CHAT = {
    "model": "octet/writer",
    "messages": [{"role": "user", "content": "why? \u00e4\u20ac"}],
    "max_tokens": 4,
    "temperature": 0.5,
    "stop": ["ab"],
    "logit_bias": {"3": 1.5},
    "octet": {"priority": 2, "timeout_ms": 2000},
}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {"model": "octet/writer", "prompt": "words", "max_tokens": 4},
    "/v1/messages": {"model": "octet/writer", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages/count_tokens": {"model": "octet/writer", "messages": [{"role": "user", "content": "hello"}]},
    "/v1/infer": {"prompt": "words", "force_specialists": ["writer"], "max_tokens": 4, "timeout_ms": 2000},
}
_GRPC = [
    *(("router", method, request.SerializeToString()) for method, request in [*_inference(), *_others()]),
    *(("replica", method, request.SerializeToString()) for method, request in _replicas()),
]


def case(seed: int, number: int) -> Case:
    random = Random(f"{seed}:{number}")  # A string as seed makes neighbouring cases unrelated.
    if random.random() < 0.5:
        door, method, raw = random.choice(_GRPC)
        return Case(door, method, _spoiled(raw, random, _MESSAGES))
    path, body = random.choice(list(_BODIES.items()))
    streams = {"stream": True} if random.random() < 0.3 else {}
    raw = json.dumps({**body, **streams}).encode()
    if random.random() < 0.7:
        spoiled = _spoiled(raw, random, _TEXTS)
        return Case("http", path, _head(path, len(spoiled)) + spoiled)
    return Case("http", path, _spoiled(_head(path, len(raw)) + raw, random, _TEXTS))


def _head(path: str, length: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: octet\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


def _spoiled(raw: bytes, random: Random, ways: Sequence[Spoil]) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        raw = random.choice(ways)(raw, random)
    return raw


def _flip(raw: bytes, random: Random) -> bytes:
    if not raw:
        return raw
    spoiled = bytearray(raw)
    spoiled[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return bytes(spoiled)


def _cut(raw: bytes, random: Random) -> bytes:
    return raw[: random.randint(0, len(raw))]


def _leave_out(raw: bytes, random: Random) -> bytes:
    start = random.randint(0, len(raw))
    return raw[:start] + raw[start + random.randint(1, 16) :]


def _put_in(raw: bytes, random: Random) -> bytes:
    start = random.randint(0, len(raw))
    return raw[:start] + random.randbytes(random.randint(1, 16)) + raw[start:]


def _repeat(raw: bytes, random: Random) -> bytes:
    start = random.randint(0, len(raw))
    part = raw[start : start + random.randint(1, 64)]
    return raw[:start] + part * random.choice((2, 2, 3, 50)) + raw[start + len(part) :]


def _other_type(raw: bytes, random: Random) -> bytes:
    """Replace the low three bits of a random byte. In a tag, these bits are the wire type."""
    spoiled = bytearray(raw or b"\x08")
    at = random.randrange(len(spoiled))
    spoiled[at] = (spoiled[at] & 0xF8) | random.randrange(8)
    return bytes(spoiled)


def _nest(raw: bytes, random: Random) -> bytes:
    """Nest the message in itself, in some cases deeper than a parser allows."""
    tag = random.choice((0x0A, 0x12, 0x1A, 0x22, 0x7A))
    for _ in range(random.choice((3, 50, 150))):
        raw = bytes((tag,)) + _varint(len(raw)) + raw
    return raw


def _huge(raw: bytes, random: Random) -> bytes:
    """Insert a field with a large number: an unknown enum value or an impossible length."""
    number = random.choice((2**31 - 1, 2**32, 2**63 - 1, 2**64 - 1, 127, 10_000))
    start = random.randint(0, len(raw))
    return raw[:start] + bytes((random.randrange(1, 256),)) + _varint(number) + raw[start:]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    return bytes((*out, number))


_WORDS = (
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"[]",
    b"{}",
    b'"\\ud800"',
    b'"\\u0000"',
    b"9" * 400,
    b"[" * 60,
)
_HEADERS = (
    b"transfer-encoding: chunked\r\n",
    b"content-length: -1\r\n",
    b"content-length: 99999999999\r\n",
    b"expect: 100-continue\r\n",
    b"content-encoding: gzip\r\n",
    b"x: " + b"y" * 70_000 + b"\r\n",
    b"authorization: Bearer nobody\r\n",
)


def _other_word(raw: bytes, random: Random) -> bytes:
    """Replace a JSON value or a header value."""
    places = [at for at, byte in enumerate(raw) if byte == ord(":")]
    if not places:
        return _put_in(raw, random)
    at = random.choice(places) + 1
    end = next((stop for stop in range(at, len(raw)) if raw[stop : stop + 1] in (b",", b"}", b"\r")), len(raw))
    return raw[:at] + b" " + random.choice(_WORDS) + raw[end:]


def _other_header(raw: bytes, random: Random) -> bytes:
    first, found, rest = raw.partition(b"\r\n")
    return first + found + random.choice(_HEADERS) + rest if found else _put_in(raw, random)


_ANY = (_flip, _cut, _leave_out, _put_in, _repeat)
_MESSAGES: tuple[Spoil, ...] = (*_ANY, _other_type, _nest, _huge)
_TEXTS: tuple[Spoil, ...] = (*_ANY, _other_word, _other_header)
