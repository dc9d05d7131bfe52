"""Spans arrive in OTLP as they were recorded."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.trace.v1 import trace_pb2 as trace
from opentelemetry.sdk.resources import Resource

from octet.telemetry.otlp import to_sdk_span
from octet.telemetry.requests import Span

HEX = "0123456789abcdef"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
VALUES = (
    TEXT
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.lists(TEXT, max_size=3).map(tuple)
)
KINDS = {"internal": 1, "server": 2, "client": 3}


def ids(digits: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=digits, max_size=digits)


SPANS = st.builds(
    Span,
    name=TEXT,
    trace_id=ids(32),
    span_id=ids(16),
    parent_id=ids(16) | st.just(""),
    start=st.integers(0, 2**64 - 1),
    end=st.integers(0, 2**64 - 1),
    attributes=st.dictionaries(TEXT, VALUES, max_size=5),
    kind=st.sampled_from(("internal", "server", "client")),
    error=st.none() | TEXT,
    state=st.sampled_from(("", "vendor=1", "a=b,c=d")),
    is_remote=st.booleans(),
)


def encoded(spans: list[Span], resource: dict[str, Any]) -> trace.ResourceSpans:
    sdk_spans = [to_sdk_span(span, Resource(resource)) for span in spans]
    found: trace.ResourceSpans = encode_spans(sdk_spans).resource_spans[0]
    return found


@given(st.lists(SPANS, min_size=1, max_size=4), st.dictionaries(TEXT.filter(bool), TEXT, max_size=3))
def test_every_span_is_read_back_unchanged(spans: list[Span], resource: dict[str, Any]) -> None:
    found = encoded(spans, resource)
    assert list(found.resource.attributes) == pairs(resource)
    (scope,) = found.scope_spans
    assert scope.scope.name == "octet"
    assert list(scope.spans) == [message(span) for span in spans]


def test_an_invalid_string_loses_no_other_span() -> None:
    span = Span("x", "1" * 32, "2" * 16, "", 1, 2, {"octet.request_id": "a\ud800b", "octet.digests": ("\udfff",)})
    (found,) = encoded([span], {}).scope_spans[0].spans
    assert found.name == "x" and found.attributes[0].value.string_value == "a?b"


def message(span: Span) -> trace.Span:
    logged = trace.Span(
        name=span.name,
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        trace_state=span.state,
        start_time_unix_nano=span.start,
        end_time_unix_nano=span.end,
        kind=KINDS[span.kind],  # type: ignore[arg-type]
        attributes=pairs(span.attributes),
        flags=0x300 if span.is_remote and span.parent_id else 0x100,
        status=trace.Status(),
    )
    if span.error is not None:
        logged.status.message, logged.status.code = span.error, trace.Status.STATUS_CODE_ERROR
    return logged


def pairs(attributes: Any) -> list[common.KeyValue]:
    return [common.KeyValue(key=key, value=value_of(value)) for key, value in attributes.items()]


def value_of(value: Any) -> common.AnyValue:
    if isinstance(value, bool):
        return common.AnyValue(bool_value=value)
    if isinstance(value, tuple):
        return common.AnyValue(array_value=common.ArrayValue(values=[value_of(each) for each in value]))
    kinds: dict[type, str] = {str: "string_value", int: "int_value", float: "double_value"}
    return common.AnyValue(**{kinds[type(value)]: value})
