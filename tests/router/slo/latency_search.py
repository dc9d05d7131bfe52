"""Search for latencies that cover more than one specialist: on the wire, in JSON, in metrics and in queries."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor
from prometheus_client.parser import text_string_to_metric_families

LATENCY = re.compile(
    r"(^|_)(ttft|itl|latency|latencies|duration|durations|quantile|quantiles|percentile|first_token|p\d\d+)(_|$)"
    r"|(^|_)(queued|prefill|wait|waited|delay|elapsed|took|response_time|step_time)(_|$)"
    r"|time_to_first_token|time_per_output_token"
    r"|(^|_)(seconds|milliseconds|microseconds|second|ms|us|ns)$"
)
"""Matches names of latencies: all names with a unit of time, except those below."""
_NO_LATENCY = re.compile(
    r"_unix_ms$|^(retry_after_ms|estimated_wait_ms|kept_ms|wait_ms|retry_delay|timeout_ms|first_token_timeout_ms|last_seconds|unrouted_per_second)$"
)
"""Names with a unit of time that are not latencies: points in time; requested, promised or suggested waits; rates."""
_GRAIN = ("octet.v1.History.step_seconds", ".step_seconds")
"""Names of the interval between the points of a history, which is not a latency."""
METRIC = re.compile(
    r"(?!process_)[a-zA-Z_:]*"
    r"(?:ttft|itl|time_to_first_token|time_per_output_token|duration|latency|first_token|_milliseconds|_ms(?=_|$)"
    r"|_seconds(?=_|$)|per_second)[a-zA-Z0-9_:]*"
)
"""Metrics in seconds or per second, except those of the process itself."""
_AGGREGATIONS = ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile", "count_values")
"""Aggregations that merge several series into one. topk and similar functions keep the labels."""
_MODIFIER = re.compile(r"\s*(by|without)\s*\(([^)]*)\)\s*")


def wire_offenders(messages: Iterable[Descriptor]) -> list[str]:
    """Return the message fields that hold a latency, in messages that belong to no specialist."""
    known = list(messages)
    parents: dict[str, list[tuple[Descriptor, str]]] = {}
    for message in known:
        for field in message.fields:
            if field.message_type is not None:
                parents.setdefault(field.message_type.full_name, []).append((message, field.name))

    def belongs(message: Descriptor, seen: frozenset[str] = frozenset()) -> bool:
        names = {field.name for field in message.fields}
        above = parents.get(message.full_name, [])
        # A replica's report is about its own specialist.
        if "specialist" in names or message.file.name.endswith("/specialist.proto"):
            return True
        if "name" in names and above and all(field == "specialists" for _, field in above):
            return True
        if message.full_name in seen or not above:
            return False
        return all(belongs(parent, seen | {message.full_name}) for parent, _ in above)

    return [
        f"{message.full_name}.{field.name}"
        for message in known
        for field in message.fields
        if tells_latency(field.name, f"{message.full_name}.{field.name}") and not belongs(message)
    ]


def tells_latency(name: str, path: str) -> bool:
    """Return whether a field or key with this name and path is a latency."""
    return bool(LATENCY.search(name)) and not _NO_LATENCY.search(name) and path not in _GRAIN


def json_offenders(value: Any, path: str = "", *, belongs: bool = False, within: str = "") -> Iterator[str]:
    """Yield the keys that hold a latency outside any object that names a specialist."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from json_offenders(each, f"{path}[{index}]", belongs=belongs, within=within)
    elif isinstance(value, dict):
        owned = belongs or bool(value.get("specialist")) or (within == "specialists" and bool(value.get("name")))
        for key, each in value.items():
            if tells_latency(key, f"{path}.{key}") and each is not None and not owned:
                yield f"{path}.{key}"
            yield from json_offenders(each, f"{path}.{key}", belongs=owned, within=key)


def metric_offenders(exposition: str) -> list[str]:
    """Return the samples of latency metrics that have no specialist label."""
    return [
        sample.name
        for family in text_string_to_metric_families(exposition)
        if METRIC.fullmatch(family.name)
        for sample in family.samples
        if not sample.labels.get("specialist")
    ]


def query_offenders(query: str) -> list[str]:
    """Return the PromQL aggregations that drop the label `specialist` of a latency."""
    found = []
    for operator in re.finditer(r"\b([a-z_]+)\b(?=\s*(?:by\b|without\b|\())", query):
        name = operator[1]
        if name not in _AGGREGATIONS:
            continue
        rest = query[operator.end() :]
        before = _MODIFIER.match(rest)
        start = operator.end() + (before.end() if before else 0)
        inside, end = _argument(query, start)
        modifier = before or _MODIFIER.match(query[end:])
        if _tells_latency(inside) and not _keeps_specialist(modifier):
            found.append(f"{name} of {inside.strip()}")
    return found


def _tells_latency(inside: str) -> bool:
    """Return whether the expression names a latency metric. Text in braces, brackets and quotes is skipped."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|(?:by|without)\s*\([^)]*\)", " ", inside)
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare)
    return any(METRIC.fullmatch(word) and not word.endswith("_over_time") for word in words)


def _keeps_specialist(modifier: re.Match[str] | None) -> bool:
    if modifier is None:
        return False
    labels = {label.strip() for label in modifier[2].split(",")}
    return ("specialist" in labels) == (modifier[1] == "by")


def _argument(query: str, start: int) -> tuple[str, int]:
    """Return the content of the first parentheses after `start`, and their end."""
    opening = query.index("(", start)
    depth = 0
    for index in range(opening, len(query)):
        depth += {"(": 1, ")": -1}.get(query[index], 0)
        if depth == 0:
            return query[opening + 1 : index], index + 1
    return query[opening + 1 :], len(query)


def queries_in(value: Any) -> Iterator[str]:
    """Yield every expression and variable query in a dashboard or rules file."""
    if isinstance(value, list):
        for each in value:
            yield from queries_in(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in ("expr", "query", "definition") and isinstance(each, str):
                yield each
            else:
                yield from queries_in(each)
