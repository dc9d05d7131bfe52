"""The measured cases, the orders (what a prompt tells a backend to answer), and the paths that a request can take."""

import re
from dataclasses import dataclass
from typing import Self

WORD = " word"  # one token; no prompt contains it
_ORDER = re.compile(rb"\[(\d+) tokens every (\d+) us(, each by itself)?\]")
_BEGIN = b"["


class OrderMissing(ValueError):
    """A prompt contains no order, so that a backend cannot answer it."""


@dataclass(frozen=True, slots=True)
class Order:
    tokens: int
    pace_us: int = 0  # microseconds between tokens
    joins: bool = True  # whether a replica may join tokens into one message

    def __str__(self) -> str:
        return f"[{self.tokens} tokens every {self.pace_us} us{'' if self.joins else ', each by itself'}]"

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Return the last order in the prompt. The search starts at the end, because a prompt may be long."""
        at = len(raw)
        while (at := raw.rfind(_BEGIN, 0, at)) >= 0:
            found = _ORDER.match(raw, at)
            if found is not None:
                return cls(int(found[1]), int(found[2]), found[3] is None)
        raise OrderMissing(f"the prompt contains no order: {raw[-200:]!r}")


OCTET, CLASSIFIED, GRPC = "octet", "octet, classified", "octet, gRPC"
LIMIT, GRPC_LIMIT, REPLICA_LIMIT = "limit", "limit, gRPC", "limit, replica"
"""Direct calls to a backend: that of the peers; Octet's with grpcio; Octet's with a client that costs less."""
RATES = (10, 25, 50, 100)  # per second
STOCK_RATES = (25, 100)
PROMPTS = (2_000, 32_000, 220_000)  # bytes
SHORT = Order(8)
PACE_US = 5_000
SERIAL = "one after the other"
STOCK = ", stock client"  # a kernel with delayed acknowledgements, the default
_BY_HTTP = (LIMIT, REPLICA_LIMIT, OCTET, CLASSIFIED)
_ALL = (*_BY_HTTP, GRPC_LIMIT, GRPC)


@dataclass(frozen=True, slots=True)
class FirstTokens:
    name: str
    systems: tuple[str, ...]  # systems of Octet; peers always take part
    requests: int  # per round
    rate: float | None = None
    """Requests per second, open loop; None: one after the other."""
    prompt_bytes: int = 0
    acks_at_once: bool = True


@dataclass(frozen=True, slots=True)
class Flood:
    name: str
    systems: tuple[str, ...]
    order: Order
    at_once: int
    seconds: float
    counts: str  # "streams", "tokens" or "requests"
    stream: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    serial: int  # requests of a round
    long: int  # requests with a long prompt
    seconds_at: tuple[float, ...]  # seconds for each rate
    stock_seconds: float
    flood_seconds: float


FULL = Size(5, 30, 12, (4.0, 1.6, 1.2, 1.0), 1.5, 1.6)
QUICK = Size(2, 4, 2, (0.3, 0.2, 0.2, 0.2), 0.2, 0.3)
SHORT_STREAMS, UNARY = "streams of 8 tokens, 32 at once", "whole answers of 8 tokens, 32 at once"
LONG_STREAMS, PACED = "streams of 500 tokens without delay, 16 at once", "streams of a token every 5 ms, 32 at once"
SINGLE = f"{PACED}, each sent by itself"


def rate_case(rate: float) -> str:
    return f"{rate:g} requests/s"


def prompt_case(size: int) -> str:
    return f"{SERIAL}, prompt of {size // 1000} KB"


def all_cases(size: Size) -> tuple[FirstTokens | Flood, ...]:
    stock = (LIMIT, REPLICA_LIMIT, OCTET)
    seconds = size.flood_seconds
    return (
        FirstTokens(SERIAL, _ALL, size.serial),
        FirstTokens(SERIAL + STOCK, _BY_HTTP, size.serial, acks_at_once=False),
        *(FirstTokens(prompt_case(each), _ALL, size.long, prompt_bytes=each) for each in PROMPTS),
        *(
            FirstTokens(rate_case(rate), _ALL, round(rate * length), rate)
            for rate, length in zip(RATES, size.seconds_at, strict=True)
        ),
        *(
            FirstTokens(rate_case(rate) + STOCK, stock, round(rate * size.stock_seconds), rate, acks_at_once=False)
            for rate in STOCK_RATES
        ),
        Flood(SHORT_STREAMS, (LIMIT, OCTET, CLASSIFIED, GRPC), SHORT, 32, seconds, "streams"),
        Flood(LONG_STREAMS, (LIMIT, OCTET, GRPC), Order(500), 16, seconds, "tokens"),
        Flood(PACED, (LIMIT, OCTET, GRPC), Order(1_000, PACE_US), 32, seconds, "tokens"),
        Flood(SINGLE, (LIMIT, OCTET), Order(1_000, PACE_US, joins=False), 32, seconds, "tokens"),
        Flood(UNARY, (LIMIT, OCTET), SHORT, 32, seconds, "requests", stream=False),
    )
