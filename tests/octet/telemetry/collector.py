"""A real OTLP server, which may be slow or refuse spans."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1 import trace_pb2 as wire

from tests.patience import PATIENCE


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was received."""

    service: str
    resource: dict[str, Any]
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    error: str | None
    raw: wire.Span

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


class Collector:
    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.headers: list[dict[str, Any]] = []
        self.refuses: grpc.StatusCode | None = None
        self.go_on = Event()
        self.go_on.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def export(self, request: Any, context: Any) -> Any:
        self.go_on.wait(PATIENCE)
        if self.refuses is not None:
            context.abort(self.refuses, "not now")
        self.headers.append(dict(context.invocation_metadata()))
        for resource in request.resource_spans:
            said = _plain(resource.resource.attributes)
            self.spans += [_received_span(span, said) for scope in resource.scope_spans for span in scope.spans]
        return service.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def named(self, name: str, trace_id: str = "") -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name and trace_id in ("", span.trace_id)]

    def until(self, found: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not found():
            assert time.monotonic() < end, f"only {[(span.service, span.name) for span in self.spans]}"
            time.sleep(0.02)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.unary_unary_rpc_method_handler(
        collector.export,
        service.ExportTraceServiceRequest.FromString,
        service.ExportTraceServiceResponse.SerializeToString,
    )
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        collector.go_on.set()
        server.stop(0)


def _received_span(span: wire.Span, resource: dict[str, Any]) -> ReceivedSpan:
    is_error = span.status.code == wire.Status.STATUS_CODE_ERROR
    return ReceivedSpan(
        service=str(resource["service.name"]),
        resource=resource,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_plain(span.attributes),
        error=span.status.message if is_error else None,
        raw=span,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind)
