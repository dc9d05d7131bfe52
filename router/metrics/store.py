"""What is kept, and whether it can be."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from octet.store import Store
from octet.telemetry.families import counter, gauge
from octet.telemetry.page import Build


def store_source(store: Store) -> Build:
    figures, up = store.figures(), not store.trouble

    def build() -> Iterator[Metric]:
        yield gauge("octet_store_up", "Whether the database answers.", (), [((), up)])
        yield gauge(
            "octet_store_held_rows",
            "Rows that wait to be written: receipts, comparisons, counts.",
            ("kind",),
            [
                (("receipts",), figures.held_receipts),
                (("comparisons",), figures.held_comparisons),
                (("counts",), figures.held_counts),
            ],
        )
        yield counter(
            "octet_store_dropped_rows_total",
            "Rows that were given up: there was no room to hold them any longer, or the database would not have them.",
            ("kind",),
            [
                (("receipts",), figures.dropped_receipts),
                (("comparisons",), figures.dropped_comparisons),
                (("counts",), figures.dropped_counts),
                (("verdicts",), figures.dropped_verdicts),
            ],
        )

    return build
