"""What a scrape is answered. The event loop only looks; the page is written elsewhere."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_OPENMETRICS = "application/openmetrics-text"
_NONE: Mapping[str, str] = MappingProxyType({})
Build = Callable[[], Iterable[Metric]]
"""Called on a thread of its own."""
Source = Callable[[], Build]
"""Called on the event loop, which it keeps no longer than a glance takes."""


class Written(NamedTuple):
    body: bytes
    content_type: str


class Page:
    """Belongs to the event loop."""

    def __init__(self, labels: Mapping[str, str] = _NONE) -> None:
        """`labels` are put on the figures of the process itself."""
        self._sources: list[Source] = [lambda: partial(_process, labels)]

    def add(self, source: Source) -> None:
        self._sources.append(source)

    async def write(self, accept: str) -> Written:
        """In the format that `accept` asks for: Prometheus' own, or OpenMetrics."""
        builds = [source() for source in self._sources]
        return await written(accept, lambda: [family for build in builds for family in build()])


async def written(accept: str, build: Build) -> Written:
    return await asyncio.to_thread(_written, accept, build)


def _written(accept: str, build: Build) -> Written:
    asked = any(each.partition(";")[0].strip() == _OPENMETRICS for each in accept.split(","))
    encode, content_type = choose_encoder(f"{_OPENMETRICS}; version=1.0.0" if asked else "")
    return Written(encode(_Found(build())), content_type)


class _Found(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


_PROCESS = ProcessCollector(registry=None)


def _process(labels: Mapping[str, str]) -> Iterator[Metric]:
    for family in _PROCESS.collect():
        family.samples = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
        yield family
