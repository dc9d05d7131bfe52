"""Whoever serves never waits for whoever collects, however badly that one behaves."""

import logging
import time

import grpc
import pytest

from octet.telemetry.requests import Span
from octet.telemetry.trace_export import SpanExporter, SpanSender, open_otlp_sender, open_span_exporter
from tests.octet.telemetry.collector import SECONDS, Collector, collecting

RESOURCE = {"service.name": "octet-test"}


def story(number: int) -> list[Span]:
    return [Span("x", f"{number + 1:032x}", "1" * 16, "", 1, 2, {"octet.number": number})]


def put(outbox: SpanExporter, *numbers: int) -> None:
    for number in numbers:
        outbox.put(lambda number=number: story(number))  # type: ignore[misc]


def until_away(outbox: SpanExporter) -> None:
    end = time.monotonic() + SECONDS
    while outbox.num_waiting:
        assert time.monotonic() < end
        time.sleep(0.01)


def numbers(collector: Collector) -> list[int]:
    return [span.attributes["octet.number"] for span in collector.spans]


def test_all_spans_arrive_in_order_with_their_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven")
    with collecting() as collector:
        outbox = open_span_exporter(collector.url, RESOURCE)
        outbox.start()
        put(outbox, *range(200))
        outbox.close(SECONDS)
        assert numbers(collector) == list(range(200))
        assert (outbox.sent, outbox.dropped) == (200, 0)
        assert collector.headers[0]["x-tenant"] == "seven"
        assert collector.spans[0].resource["service.name"] == "octet-test"


def test_an_absent_collector_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as gone:
        url = gone.url
    outbox = SpanExporter(lambda: open_otlp_sender(url, RESOURCE), most=50, every=0.01)
    with caplog.at_level(logging.INFO):
        outbox.start()
        put(outbox, *range(1000))
        assert outbox.num_waiting <= 50, "memory is bounded"
        outbox.close(0.2)
        put(outbox, 1)
    assert outbox.sent == 0 and outbox.dropped == 1001
    assert sum("were lost" in record.message for record in caplog.records) == 1


def test_a_hung_collector_delays_no_request(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        collector.go_on.clear()
        outbox = SpanExporter(lambda: open_otlp_sender(collector.url, RESOURCE), most=20, batch=5, every=0.01)
        outbox.start()
        put(outbox, *range(5))
        until_away(outbox)
        put(outbox, *range(5, 500))
        assert outbox.num_waiting == 20
        began = time.monotonic()
        outbox.close(0.1)
        assert time.monotonic() - began < 8, "the sending itself may take ten seconds"
        assert (outbox.sent, outbox.dropped) == (0, 500)


def test_a_collector_that_refuses_loses_its_spans_and_gets_the_next(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector, caplog.at_level(logging.INFO):
        outbox = SpanExporter(lambda: open_otlp_sender(collector.url, RESOURCE), every=0.01)
        outbox.start()
        collector.refuses = grpc.StatusCode.INVALID_ARGUMENT
        put(outbox, 1)
        collector.until(lambda: outbox.dropped == 1)
        collector.refuses = None
        put(outbox, 2)
        collector.until(lambda: outbox.sent == 1)
        outbox.close(SECONDS)
        assert numbers(collector) == [2]
    told = [record.message for record in caplog.records if record.name == "octet.telemetry.trace_export"]
    assert told == [
        "The collector accepts no traces; they are dropped until it does.",
        "The collector takes traces again; those of 1 requests were lost.",
        "Traces of 1 requests were lost, 1 were sent.",
    ]


def test_a_failing_sender_or_span_source_is_contained() -> None:
    def broken() -> list[Span]:
        raise ValueError("drawn badly")

    with collecting() as collector:
        outbox = SpanExporter(lambda: open_otlp_sender(collector.url, RESOURCE), batch=1, every=0.01)
        outbox.start()
        outbox.put(broken)
        put(outbox, 1)
        collector.until(lambda: outbox.sent == 1)
        outbox.close(SECONDS)
        assert (outbox.sent, outbox.dropped) == (1, 1)
    shut = SpanExporter(_no_post)
    put(shut, 1)
    shut.start()
    shut.close(SECONDS)
    assert (shut.sent, shut.dropped) == (0, 1)


def _no_post() -> SpanSender:
    raise OSError("a certificate that is not there")
