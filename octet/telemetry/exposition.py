"""Prometheus exposition: metric families, and an HTTP listener for scrapes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octet.rpc.certificates import ReloadingSslContext
from octet.rpc.listener import Endpoint, bind_socket, check_client_ca_configured
from octet.telemetry.distributions import Histogram

MOST_SCRAPES = 16
MOST_HEAD_BYTES = 8192
SCRAPE_TIMEOUT_SECONDS = 10.0  # from the connection to the last byte that the scraper reads
METRICS_PATH = "/metrics"
_TEXT_PLAIN = "text/plain; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_PROCESS_COLLECTOR = ProcessCollector(registry=None)

Labels = Sequence[str]
Sample = tuple[Labels, float | None]  # label values and the sample's value; None leaves the sample out
FamilyStream = Iterator[Metric | None]
"""Yields None, then metric families. The code before the None takes a snapshot on the event loop and must be fast; the
rest runs on another thread."""
MetricSource = Callable[[], FamilyStream]


def gauge_family(name: str, about: str, labels: Labels, samples: Iterable[Sample]) -> Metric:
    return _add_samples(GaugeMetricFamily(name, about, labels=labels), samples)


def counter_family(name: str, about: str, labels: Labels, samples: Iterable[Sample]) -> Metric:
    return _add_samples(CounterMetricFamily(name, about, labels=labels), samples)


def _add_samples(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]) -> Metric:
    for values, sample in samples:
        if sample is not None:
            family.add_metric(values, sample)
    return family


def histogram_family(name: str, about: str, labels: Labels, histograms: Iterable[tuple[Labels, Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for values, each in histograms:
        bounds = (*map(repr, map(float, each.bounds)), "+Inf")
        family.add_metric(values, list(zip(bounds, accumulate(list(each.counts)), strict=True)), each.total)
    return family


def state_family(
    name: str, about: str, labels: Labels, states: Iterable[str], samples: Iterable[tuple[Labels, str]]
) -> Metric:
    """Return a family with a sample per state: 1 for the current one, 0 for the others. The state is the last label."""
    known = tuple(states)
    rows = [((*values, state), float(state == now)) for values, now in samples for state in known]
    return gauge_family(name, about, labels, rows)


class ExpositionText(NamedTuple):
    body: bytes
    content_type: str


class Exposition:
    """Answers scrapes. The event loop only takes snapshots; the text is written on another thread."""

    def __init__(self, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """`labels` are added to the metrics of the process itself."""
        self._sources: list[MetricSource] = [partial(_process_families, labels)]

    def add(self, source: MetricSource) -> None:
        self._sources.append(source)

    async def write(self, accept: str) -> ExpositionText:
        streams = [source() for source in self._sources]
        for stream in streams:
            next(stream)
        families = (family for stream in streams for family in stream if family is not None)
        return await asyncio.to_thread(write_exposition, accept, families)


def write_exposition(accept: str, families: Iterable[Metric]) -> ExpositionText:
    is_openmetrics = any(each.partition(";")[0].strip() == _OPENMETRICS for each in accept.split(","))
    encode, content_type = choose_encoder(f"{_OPENMETRICS}; version=1.0.0" if is_openmetrics else "")
    return ExpositionText(encode(_StaticCollector(families)), content_type)


class _StaticCollector(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _process_families(labels: Mapping[str, str]) -> FamilyStream:
    yield None  # the rest runs on another thread
    for family in _PROCESS_COLLECTOR.collect():
        family.samples = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
        yield family


class MetricsListener:
    """Serves only `GET /metrics`, one request per connection. Used only on the running event loop."""

    def __init__(self, exposition: Exposition, endpoint: Endpoint) -> None:
        """Raises BindRefused, and OSError for an unreadable certificate."""
        check_client_ca_configured(endpoint)
        self._exposition = exposition
        self._tls = None if endpoint.tls is None else ReloadingSslContext.watch(endpoint.tls)
        self._socket = bind_socket(endpoint, "--metrics-port")
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._socket, ssl=self._tls, limit=MOST_HEAD_BYTES)

    async def stop(self) -> None:
        if self._server is None:
            self._socket.close()
            return
        self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_SECONDS):
                if len(self._open) > MOST_SCRAPES:
                    writer.write(_response(503, _TEXT_PLAIN, b"too many scrapes at once\n"))
                else:
                    writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):  # the scraper is gone or too slow
            writer.transport.abort()
        finally:
            self._open.discard(writer)
            with suppress(Exception):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return _response(400, _TEXT_PLAIN, b"not a valid HTTP request\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != METRICS_PATH:
            return _response(404, _TEXT_PLAIN, f"there is only {METRICS_PATH}\n".encode())
        if method != "GET":
            return _response(405, _TEXT_PLAIN, b"use GET\n", "allow: GET\r\n")
        headers = (line.partition(":") for line in lines)
        accept = ",".join(value for name, _, value in headers if name.lower() == "accept")
        text = await self._exposition.write(accept)
        return _response(200, text.content_type, text.body)


def _response(status: int, content_type: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
