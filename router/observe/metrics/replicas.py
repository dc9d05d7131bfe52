"""Merge the replicas' own metrics into one exposition."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from octet.telemetry.exposition import ExpositionText
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.fleet import Fleet
from router.dispatch.replicas.replica import Replica

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_KEY, _VALUE = r"[a-zA-Z_][a-zA-Z0-9_]*", r'(?:[^"\\\n]|\\["\\n])*'
_LABEL = f'{_KEY}="{_VALUE}"'
_NUMBER = r"(?:[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN)"
_FAMILY = re.compile(
    rf"(?:# HELP (?P<helped>{_NAME}) [^\n]*\n)?"
    rf"# TYPE (?P<name>{_NAME}) (?P<kind>counter|gauge|histogram)\n"
    r"(?P<body>(?:[^#\n][^\n]*\n)*)"
)
_SAMPLE = re.compile(rf"^({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?,?\}})? ({_NUMBER})$", re.MULTILINE)
_LABELS = re.compile(f'({_KEY})="({_VALUE})"')
_PARTS = ("_bucket", "_sum", "_count")
_OWNER_LABELS = frozenset({"specialist", "replica"})
_Family = tuple[str, str, str, str]  # name, kind, head, and samples


class MalformedExposition(ValueError):
    pass


class ExpositionMerger:
    """Merges text expositions of several processes with regular expressions: a real parser would take ten times as long
    and compete with requests for the interpreter. Not thread-safe."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[str, str]] = {}  # type and comment lines of each family
        self._samples: dict[str, list[str]] = {}
        self._labels: dict[str, str] = {"": ""}  # cache: maps label sets to the same without the owner's labels

    def add(self, page: bytes, specialist: str, replica: str) -> None:
        """Add an exposition, or raise MalformedExposition. A family already added with another type is skipped."""
        owner = f'specialist="{_escape_label(specialist)}",replica="{_escape_label(replica)}"'
        for name, kind, head, samples in self._read(page, owner):
            known, _ = self._heads.setdefault(name, (kind, head))
            if known == kind:
                self._samples.setdefault(name, []).append(samples)

    def text(self) -> bytes:
        families = (part for name, (_, head) in self._heads.items() for part in (head, *self._samples[name]))
        return "".join(families).encode()

    def _read(self, page: bytes, owner: str) -> list[_Family]:
        try:
            text = page.decode()
        except UnicodeDecodeError as error:
            raise MalformedExposition("the page is not UTF-8") from error
        families: dict[str, _Family] = {}
        at = 0
        while at < len(text):
            found = _FAMILY.match(text, at)
            if found is None or found["helped"] not in (None, found["name"]) or found["name"] in families:
                raise MalformedExposition(f"no valid metric family at character {at}")
            name, kind = found["name"], found["kind"]
            samples = self._relabelled(name, kind, found["body"], owner)
            families[name] = (name, kind, text[at : found.start("body")], samples)
            at = found.end()
        return list(families.values())

    def _relabelled(self, family: str, kind: str, body: str, owner: str) -> str:
        found = _SAMPLE.findall(body)
        names = {f"{family}{part}" for part in _PARTS} if kind == "histogram" else {family}
        if len(found) != body.count("\n") or not names.issuperset(name for name, _, _ in found):
            raise MalformedExposition(f"{family} has an invalid sample")
        known = self._labels
        for labels in {labels for _, labels, _ in found if labels not in known}:
            others = (pair for pair in _LABELS.findall(labels) if pair[0] not in _OWNER_LABELS)
            known[labels] = "".join(f'{label}="{value}",' for label, value in others)
        return "".join([f"{name}{{{known[labels]}{owner}}} {value}\n" for name, labels, value in found])


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


SCRAPE_SECONDS = 2.0
YIELD_SECONDS = 0.0005  # a pause between two expositions, in which the event loop can serve requests
_UP = b"""\
# HELP octet_replica_up Whether the replica answered this scrape.
# TYPE octet_replica_up gauge
octet_replica_up %.1f
"""


class ReplicaScrape(NamedTuple):
    specialist: str
    replica: str
    text: bytes | None


class ReplicaMetrics:
    """Scrapes all replicas. Those whose answers are late or malformed are left out and counted."""

    def __init__(self, fleet: Fleet, seconds: float = SCRAPE_SECONDS) -> None:
        self._fleet = fleet
        self._seconds = seconds
        self.failures: Counter[tuple[str, str]] = Counter()  # by specialist and reason: silent, malformed

    async def write(self, accept: str) -> ExpositionText:
        """Return the metrics of all replicas, always in Prometheus's text format; `accept` is ignored."""
        scrapes = await asyncio.gather(*(self._scrape(replica) for replica in self._fleet.replicas))
        malformed: list[str] = []
        page = await asyncio.to_thread(merge_scrapes, scrapes, malformed)
        for each in scrapes:
            if each.text is None:
                self.failures[each.specialist, "silent"] += 1
        for specialist in malformed:
            self.failures[specialist, "malformed"] += 1
        return ExpositionText(page, CONTENT_TYPE_PLAIN_0_0_4)

    async def _scrape(self, replica: Replica) -> ReplicaScrape:
        request = wire.GetMetricsRequest().SerializeToString()
        try:
            async with asyncio.timeout(self._seconds):
                raw = await replica.channel.call("/octet.v1.Specialist/GetMetrics", request, timeout=self._seconds)
            text: bytes = wire.GetMetricsResponse.FromString(raw).text
        except (grpc.aio.AioRpcError, TimeoutError, DecodeError):
            return ReplicaScrape(replica.specialist, replica.name, None)
        return ReplicaScrape(replica.specialist, replica.name, text)


def merge_scrapes(scrapes: Sequence[ReplicaScrape], malformed: list[str], pause: float = YIELD_SECONDS) -> bytes:
    """Return every family once, labelled by replica. Append the specialist of each malformed scrape to `malformed`."""
    up, merger = ExpositionMerger(), ExpositionMerger()
    for each in scrapes:
        is_read = False
        if each.text is not None:
            try:
                merger.add(each.text, each.specialist, each.replica)
                is_read = True
            except MalformedExposition:
                malformed.append(each.specialist)
            time.sleep(pause)
        up.add(_UP % is_read, each.specialist, each.replica)
    return up.text() + merger.text()
