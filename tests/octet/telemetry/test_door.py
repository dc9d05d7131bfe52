"""A door for Prometheus alone: what it serves, what it turns away, and where it may stand."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octet.rpc.bind_refused import BindRefused
from octet.telemetry import door as doors
from octet.telemetry.door import MetricsDoor
from octet.telemetry.families import gauge
from octet.telemetry.page import Page
from specialist.service.settings import MetricsSettings
from tests.monitoring.exported import families
from tests.service.harness import run
from tests.service.test_tls import pki, tls

__all__ = ["pki"]


@asynccontextmanager
async def standing(**settings: Any) -> AsyncIterator[MetricsDoor]:
    page = Page()
    page.add(lambda: lambda: [gauge("one", "about", ("label",), [(("a",), 1)])])
    door = MetricsDoor(page, MetricsSettings(**settings))
    await door.start()
    try:
        yield door
    finally:
        await door.stop()


async def heard(door: MetricsDoor, sent: bytes, context: ssl.SSLContext | None = None) -> tuple[str, str]:
    """Head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, ssl=context)
    try:
        writer.write(sent)
        raw = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    head, _, body = raw.decode().partition("\r\n\r\n")
    return head, body


async def status(door: MetricsDoor, context: ssl.SSLContext | None = None) -> str:
    """Whoever does not read what was asked may end the connection before its answer is heard."""
    try:
        head, _ = await heard(door, b"GET /metrics HTTP/1.1\r\n\r\n", context)
    except (ssl.SSLError, ConnectionError):
        return "turned away"
    return head.split()[1] if head else "turned away"


def test_it_serves_the_page_in_both_formats() -> None:
    async def story() -> None:
        async with standing() as door:
            head, body = await heard(door, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            assert head.startswith("HTTP/1.1 200") and "text/plain; version=0.0.4" in head
            names = {family.name for family in families(body)}
            assert "one" in names and "process_resident_memory_bytes" in names
            asked = (
                b"GET /metrics?x=1 HTTP/1.1\r\naccept: application/openmetrics-text;version=nonsense;q=0.5,*/*\r\n\r\n"
            )
            head, body = await heard(door, asked)
            assert "application/openmetrics-text; version=1.0.0" in head and body.endswith("# EOF\n")

    run(story())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/replicas HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * doors.MOST_HEAD_BYTES + b"\r\n\r\n", 400),
        (bytes(range(256)) * 100, 400),
    ],
)
def test_everything_else_is_turned_away(sent: bytes, status: int) -> None:
    async def story() -> None:
        async with standing() as door:
            head, _ = await heard(door, sent)
            assert head.startswith(f"HTTP/1.1 {status} ")
            assert (await heard(door, b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 200")

    run(story())


def test_who_holds_connections_keeps_nobody_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "SECONDS", 0.5)

    async def story() -> None:
        async with standing() as door:
            held = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(doors.MOST_AT_ONCE)]
            statuses = set()
            async with asyncio.timeout(20):
                while "200" not in statuses:
                    statuses.add(await status(door))
                    await asyncio.sleep(0.05)
            assert "200" in statuses and statuses & {"503", "turned away"}
            for _, writer in held:
                writer.close()

    run(story())


def test_beyond_loopback_only_with_certificates_or_when_told_so(pki: Path) -> None:
    async def story() -> None:
        with pytest.raises(BindRefused, match="tls-client-ca"):
            MetricsDoor(Page(), MetricsSettings(host="0.0.0.0"))  # noqa: S104
        async with standing(host="0.0.0.0", insecure=True) as door:  # noqa: S104
            with pytest.raises(BindRefused, match="--metrics-port"):
                MetricsDoor(Page(), MetricsSettings(port=door.port, host="0.0.0.0", insecure=True))  # noqa: S104
        async with standing(host="0.0.0.0", tls=tls(pki)) as door:  # noqa: S104
            known = ssl.create_default_context(cafile=pki / "ca.pem")
            known.load_cert_chain(pki / "caller.pem", pki / "caller.key")
            head, _ = await heard(door, b"GET /metrics HTTP/1.1\r\n\r\n", known)
            assert head.startswith("HTTP/1.1 200")
            stranger = ssl.create_default_context(cafile=pki / "ca.pem")
            assert await status(door, stranger) == "turned away"

    run(story())
