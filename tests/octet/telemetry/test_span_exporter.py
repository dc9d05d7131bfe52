"""Requests never wait for the trace collector, whatever it does."""

import logging
import time
from collections.abc import Callable

import grpc
import pytest

from octet.telemetry.requests import Span
from octet.telemetry.trace_export import SpanExporter, SpanSender, open_otlp_sender, open_span_exporter
from tests.octet.telemetry.collector import Collector, collecting
from tests.patience import PATIENCE

RESOURCE = {"service.name": "octet-test"}


def spans_of_request(number: int) -> list[Span]:
    return [Span("x", f"{number + 1:032x}", "1" * 16, "", 1, 2, {"octet.number": number})]


def put(exporter: SpanExporter, *numbers: int) -> None:
    for number in numbers:
        exporter.put(lambda number=number: spans_of_request(number))  # type: ignore[misc]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def numbers(collector: Collector) -> list[int]:
    return [span.attributes["octet.number"] for span in collector.spans]


def test_all_spans_arrive_in_order_with_their_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven")
    with collecting() as collector:
        exporter = open_span_exporter(collector.url, RESOURCE)
        exporter.start()
        put(exporter, *range(200))
        exporter.close(PATIENCE)
        assert numbers(collector) == list(range(200))
        assert (exporter.sent, exporter.dropped) == (200, 0)
        assert collector.headers[0]["x-tenant"] == "seven"
        assert collector.spans[0].resource["service.name"] == "octet-test"


def test_an_absent_collector_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as gone:
        url = gone.url
    exporter = SpanExporter(lambda: open_otlp_sender(url, RESOURCE), most=50, every=0.01)
    with caplog.at_level(logging.INFO):
        exporter.start()
        put(exporter, *range(1000))
        assert exporter.num_waiting <= 50, "memory must be bounded"
        exporter.close(0.2)
        put(exporter, 1)
        until(lambda: exporter.dropped == 1001)
    assert exporter.sent == 0
    assert sum("were lost" in record.message for record in caplog.records) == 1


def test_a_hung_collector_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector hangs for a minute and then accepts the spans. A `close` that waited would count them as sent."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    with collecting() as collector:
        collector.go_on.clear()
        exporter = SpanExporter(lambda: open_otlp_sender(collector.url, RESOURCE), most=20, batch=5, every=0.01)
        exporter.start()
        put(exporter, *range(5))
        until(lambda: not exporter.num_waiting)
        put(exporter, *range(5, 500))
        assert exporter.num_waiting == 20
        exporter.close(0.1)
        assert (exporter.sent, numbers(collector)) == (0, []), "closing must not wait for a send"
        until(lambda: exporter.dropped == 500)
        assert exporter.sent == 0


def test_refused_spans_are_lost_and_later_spans_arrive(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector, caplog.at_level(logging.INFO):
        exporter = SpanExporter(lambda: open_otlp_sender(collector.url, RESOURCE), every=0.01)
        exporter.start()
        collector.refuses = grpc.StatusCode.INVALID_ARGUMENT
        put(exporter, 1)
        collector.until(lambda: exporter.dropped == 1)
        collector.refuses = None
        put(exporter, 2)
        collector.until(lambda: exporter.sent == 1)
        exporter.close(PATIENCE)
        assert numbers(collector) == [2]
    logged = [record.message for record in caplog.records if record.name == "octet.telemetry.trace_export"]
    assert logged == [
        "The collector does not accept traces; dropping them until it does.",
        "The collector accepts traces again; those of 1 requests were lost.",
        "The traces of 1 requests were lost; those of 1 were sent.",
    ]


def test_a_failing_sender_or_span_source_is_contained() -> None:
    def broken() -> list[Span]:
        raise ValueError("drawn badly")

    with collecting() as collector:
        exporter = SpanExporter(lambda: open_otlp_sender(collector.url, RESOURCE), batch=1, every=0.01)
        exporter.start()
        exporter.put(broken)
        put(exporter, 1)
        collector.until(lambda: exporter.sent == 1)
        exporter.close(PATIENCE)
        assert (exporter.sent, exporter.dropped) == (1, 1)
    shut = SpanExporter(_failing_sender)
    put(shut, 1)
    shut.start()
    shut.close(PATIENCE)
    assert (shut.sent, shut.dropped) == (0, 1)


def _failing_sender() -> SpanSender:
    raise OSError("a certificate that is not there")
