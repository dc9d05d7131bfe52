"""What became of the traces that are recorded."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from octet.telemetry.families import counter
from octet.telemetry.outbox import Outbox
from octet.telemetry.page import Build


def trace_source(outbox: Outbox | None) -> Build:
    """None: traces are sent nowhere."""
    sent, dropped = (0, 0) if outbox is None else (outbox.sent, outbox.dropped)

    def build() -> Iterator[Metric]:
        about = "Requests, shadows and late verdicts whose spans were taken where traces are sent."
        yield counter("octet_sent_traces_total", about, (), [((), sent)])
        about = "Those whose spans were lost: nobody took them, or there was no room to hold them."
        yield counter("octet_lost_traces_total", about, (), [((), dropped)])

    return build
