"""The listener for Prometheus: its page, its refusals and its permitted addresses."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octet.rpc.listener import BindRefused, Endpoint
from octet.telemetry import exposition as exposition_module
from octet.telemetry.exposition import Exposition, MetricsListener, gauge_family
from tests.monitoring.exported import families
from tests.patience import PATIENCE
from tests.specialist.server.test_tls import pki, tls

__all__ = ["pki"]


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[MetricsListener]:
    page = Exposition()
    page.add(lambda: iter((None, gauge_family("one", "about", ("label",), [(("a",), 1)]))))
    listener = MetricsListener(page, Endpoint(**settings))
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


async def fetch(listener: MetricsListener, sent: bytes, context: ssl.SSLContext | None = None) -> tuple[str, str]:
    """Return the head and the body of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
    try:
        writer.write(sent)
        raw = await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()
    head, _, body = raw.decode().partition("\r\n\r\n")
    return head, body


async def status(listener: MetricsListener, context: ssl.SSLContext | None = None) -> str:
    """Return the HTTP status, or "refused" if the listener closed the connection without an answer."""
    try:
        head, _ = await fetch(listener, b"GET /metrics HTTP/1.1\r\n\r\n", context)
    except (ssl.SSLError, ConnectionError):
        return "refused"
    return head.split()[1] if head else "refused"


async def test_metrics_page_is_served_in_both_formats() -> None:
    async with listening() as listener:
        head, body = await fetch(listener, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        assert head.startswith("HTTP/1.1 200") and "text/plain; version=0.0.4" in head
        names = {family.name for family in families(body)}
        assert "one" in names and "process_resident_memory_bytes" in names
        asked = b"GET /metrics?x=1 HTTP/1.1\r\naccept: application/openmetrics-text;version=nonsense;q=0.5,*/*\r\n\r\n"
        head, body = await fetch(listener, asked)
        assert "application/openmetrics-text; version=1.0.0" in head and body.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/replicas HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * exposition_module.MOST_HEAD_BYTES + b"\r\n\r\n", 400),
        (bytes(range(256)) * 100, 400),
    ],
)
async def test_other_requests_are_refused(sent: bytes, status: int) -> None:
    async with listening() as listener:
        head, _ = await fetch(listener, sent)
        assert head.startswith(f"HTTP/1.1 {status} ")
        assert (await fetch(listener, b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 200")


async def test_idle_connections_do_not_block_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition_module, "SCRAPE_TIMEOUT_SECONDS", 2.0)
    async with listening() as listener:
        held = [
            await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(exposition_module.MOST_SCRAPES)
        ]
        statuses = set()
        async with asyncio.timeout(PATIENCE):
            while "200" not in statuses:
                statuses.add(await status(listener))
                await asyncio.sleep(0.05)
        assert "200" in statuses and statuses & {"503", "refused"}
        for _, writer in held:
            writer.close()


async def test_beyond_loopback_requires_certificates_or_insecure(pki: Path) -> None:
    with pytest.raises(BindRefused, match="tls-client-ca"):
        MetricsListener(Exposition(), Endpoint(host="0.0.0.0"))  # noqa: S104
    async with listening(host="0.0.0.0", insecure=True) as listener:  # noqa: S104
        with pytest.raises(BindRefused, match="--metrics-port"):
            MetricsListener(Exposition(), Endpoint(port=listener.port, host="0.0.0.0", insecure=True))  # noqa: S104
    async with listening(host="0.0.0.0", tls=tls(pki)) as listener:  # noqa: S104
        known = ssl.create_default_context(cafile=pki / "ca.pem")
        known.load_cert_chain(pki / "caller.pem", pki / "caller.key")
        head, _ = await fetch(listener, b"GET /metrics HTTP/1.1\r\n\r\n", known)
        assert head.startswith("HTTP/1.1 200")
        stranger = ssl.create_default_context(cafile=pki / "ca.pem")
        assert await status(listener, stranger) == "refused"
