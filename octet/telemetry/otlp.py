"""Sends spans by OTLP over gRPC, through OpenTelemetry's exporter. Imported only if traces are exported."""

import logging
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from octet import __version__
from octet.telemetry.requests import AttributeValue, Span

_SCOPE = InstrumentationScope("octet", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class OtlpSender:
    """Sends spans. OpenTelemetry's environment variables set headers, certificates, compression and timeouts."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        """`resource` describes the sending process with OpenTelemetry's attributes."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # SpanExporter reports failures, once
        self._resource = Resource.create(dict(resource))
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        self._is_closed = False

    def send(self, spans: Sequence[Span]) -> bool:
        sdk_spans = [to_sdk_span(span, self._resource) for span in spans]
        return self._exporter.export(sdk_spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()


def to_sdk_span(span: Span, resource: Resource) -> ReadableSpan:
    trace_id = int(span.trace_id, 16)
    state = TraceState.from_header([span.state]) if span.state else None
    parent = None
    if span.parent_id:
        parent = SpanContext(trace_id, int(span.parent_id, 16), span.is_remote, _SAMPLED)
    return ReadableSpan(
        _valid(span.name),
        context=SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED, state),
        parent=parent,
        resource=resource,
        attributes={name: _valid_value(value) for name, value in span.attributes.items()},
        kind=_KINDS[span.kind],
        status=Status() if span.error is None else Status(StatusCode.ERROR, _valid(span.error)),
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=_SCOPE,
    )


def _valid_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return _valid(value)
    return tuple(map(_valid, value)) if isinstance(value, tuple) else value


def _valid(text: str) -> str:
    """Replace lone surrogates: UTF-8 cannot encode them, and a single one would make a whole batch of spans fail."""
    return text if text.isascii() else text.encode(errors="replace").decode()
