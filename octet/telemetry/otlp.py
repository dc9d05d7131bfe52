"""Traces by OTLP over gRPC, through OpenTelemetry's own exporter: loaded where it is wanted, not before."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from octet.telemetry.otlp_wire import request_of, resource_of, scope_of
from octet.telemetry.outbox import Outbox, Post
from octet.telemetry.span import Span

_SCOPE = "octet"


def outbox_to(endpoint: str, resource: Mapping[str, str]) -> Outbox:
    """`resource` says who sends them, by OpenTelemetry's names."""
    return Outbox(lambda: otlp_post(endpoint, resource))


def otlp_post(endpoint: str, resource: Mapping[str, str]) -> Post:
    """Headers, certificates, compression and how long a sending may take are the environment's to say, by the names
    that the SDK knows. Loads it."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    from octet import __version__

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the outbox says what there is to say, once
    attributes: dict[str, Any] = dict(Resource.create(dict(resource)).attributes)
    head = resource_of(attributes), scope_of(_SCOPE, __version__)

    class Exporter(OTLPSpanExporter):
        """With our own spans for the SDK's."""

        def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
            request: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(request_of(data, *head))
            return request

        def send(self, spans: Sequence[Span]) -> bool:
            return self._export(spans) is SpanExportResult.SUCCESS  # type: ignore[arg-type]

        def close(self) -> None:
            if not self._shutdown:
                self.shutdown()

    return Exporter(endpoint=endpoint)
