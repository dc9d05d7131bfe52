"""What is written by hand is what OpenTelemetry's own messages would have written."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2 as common
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from octet.telemetry.otlp_wire import request_of, resource_of, scope_of
from octet.telemetry.span import Span

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
    state=TEXT,
    is_remote=st.booleans(),
)


@given(st.lists(SPANS, max_size=4), st.dictionaries(TEXT, VALUES, max_size=3), TEXT)
def test_every_span_reads_back_as_itself(spans: list[Span], resource: dict[str, Any], version: str) -> None:
    raw = request_of(spans, resource_of(resource), scope_of("octet", version))
    expected = ExportTraceServiceRequest()
    told = expected.resource_spans.add()
    told.resource.attributes.extend(pairs(resource))
    scope = told.scope_spans.add()
    scope.scope.name, scope.scope.version = "octet", version
    scope.spans.extend(message(span) for span in spans)
    assert ExportTraceServiceRequest.FromString(raw) == expected


def test_what_utf8_cannot_say_costs_nobody_else_anything() -> None:
    span = Span("x", "1" * 32, "2" * 16, "", 1, 2, {"octet.request_id": "a\ud800b"})
    raw = request_of([span], resource_of({}), scope_of("octet", ""))
    assert ExportTraceServiceRequest.FromString(raw).resource_spans[0].scope_spans[0].spans[0].name == "x"


def message(span: Span) -> trace.Span:
    status = trace.Status()
    told = trace.Span(
        name=span.name,
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        trace_state=span.state,
        start_time_unix_nano=span.start,
        end_time_unix_nano=span.end,
        kind=KINDS[span.kind],  # type: ignore[arg-type]
        attributes=pairs(span.attributes),
        flags=0x301 if span.is_remote else 0x101,
    )
    if span.error is not None:
        status.message, status.code = span.error, trace.Status.STATUS_CODE_ERROR
        told.status.CopyFrom(status)
    return told


def pairs(attributes: Any) -> list[common.KeyValue]:
    return [common.KeyValue(key=key, value=value_of(value)) for key, value in attributes.items()]


def value_of(value: Any) -> common.AnyValue:
    if isinstance(value, bool):
        return common.AnyValue(bool_value=value)
    if isinstance(value, tuple):
        return common.AnyValue(array_value=common.ArrayValue(values=[value_of(each) for each in value]))
    kinds: dict[type, str] = {str: "string_value", int: "int_value", float: "double_value"}
    return common.AnyValue(**{kinds[type(value)]: value})
