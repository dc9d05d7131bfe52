"""Hostile calls to real processes, and how the calls end."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from octet.v1 import error_pb2
from specialist.engines.sim.engine import CostModel
from tests.faults.site import Plan, Site
from tests.patience import PATIENCE

SEED = "OCTET_FAULTS_SEED"
FIRST = "OCTET_FAULTS_FIRST"
"""Environment variables that repeat earlier cases: their seed, and the first case to run."""
INSTANT = CostModel(*(0.0,) * 8)
DOCS = Path(__file__).parents[2] / "docs"
_BARE = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


_LINGER_SECONDS = 1.0
WAITS = "waits for more"
CLOSED = "closed without a word"
RESET = "reset without a word"
NONSENSE = "nonsense"


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended."""

    code: str
    """The name of the gRPC status, the HTTP status code, or one of the constants above."""
    is_typed: bool = True
    """Whether the call ended with a reason."""


def small_site(**changes: Any) -> Plan:
    """Return a plan with one replica whose steps take no time."""
    return Plan({"writer": 1}, **{"cost": INSTANT, **changes})


def seed_and_first(usual: int) -> tuple[int, int]:
    return int(os.environ.get(SEED) or usual), int(os.environ.get(FIRST) or 0)


def documented_codes() -> frozenset[str]:
    """Return the gRPC status codes that docs/routing.md lists."""
    return frozenset(re.findall(r"^\| ([A-Z_]+) \| [A-Z_, ]+ \|", (DOCS / "routing.md").read_text(), re.MULTILINE))


def documented_statuses() -> frozenset[str]:
    return frozenset(re.findall(r"^- ([0-9]{3}): ", (DOCS / "http.md").read_text(), re.MULTILINE))


class RawGrpc:
    """Sends raw bytes as gRPC messages."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_BARE)

    async def close(self) -> None:
        await self._channel.close()

    async def send(self, method: str, raw: bytes, seconds: float = PATIENCE) -> CallEnd:
        async def one() -> Any:
            yield raw

        call = self._channel.stream_stream(method)(one(), timeout=seconds)
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
            return CallEnd((await call.code()).name)
        except grpc.aio.AioRpcError as error:
            beside = dict(error.trailing_metadata() or ()).get("octet-error-bin", b"")
            return CallEnd(error.code().name, error_pb2.Error.FromString(beside).reason != 0)


async def send_http(port: int, raw: bytes, seconds: float) -> CallEnd:
    """Send raw bytes to the HTTP port, and return how the call ended: after this many seconds without a final status,
    or a second without a further byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received, end = b"", CLOSED
    try:
        writer.write(raw)
        while more := await asyncio.wait_for(reader.read(1 << 20), _LINGER_SECONDS if _final(received) else seconds):
            received += more
    except TimeoutError:
        end = WAITS
    except ConnectionError:
        end = RESET
    finally:
        writer.close()
    return parse_call_end(received, end)


def parse_call_end(received: bytes, end: str) -> CallEnd:
    """Return how the call that received these bytes ended. `end` says how its connection ended."""
    if final := _final(received):
        return CallEnd(final[-1], final[-1] < "400" or b'"error"' in received)
    return CallEnd(NONSENSE if received and not _statuses(received) else end)


def _statuses(received: bytes) -> list[str]:
    return [status.decode() for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) [^\r]*\r\n", received)]


def _final(received: bytes) -> list[str]:
    return [status for status in _statuses(received) if status != "100"]


def may_wait_for(sent: bytes) -> bool:
    """Return whether an HTTP request is incomplete, so that the server may still wait for the rest."""
    head, found, body = sent.partition(b"\r\n\r\n")
    if not found or re.search(rb"(?i)^transfer-encoding:.*chunked", head, re.MULTILINE):
        return True
    lengths = re.findall(rb"(?i)^content-length:[ \t]*([0-9]+)", head, re.MULTILINE)
    return any(int(length) > len(body) for length in lengths)


def http_port(site: Site) -> int:
    return int(site.http.rpartition(":")[2])


async def scraped(site: Site) -> dict[str, float]:
    """Return the router's metrics that have no labels."""
    reader, writer = await asyncio.open_connection("127.0.0.1", http_port(site))
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    return {name: float(value) for name, value in re.findall(r"^(\w+) ([-+.0-9e]+)$", page, re.MULTILINE)}
