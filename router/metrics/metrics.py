"""All that a router tells Prometheus: its own figures on one page, its replicas' on another."""

from functools import partial

from octet.telemetry.outbox import Outbox
from octet.telemetry.page import Page
from router.metrics.after import after_source
from router.metrics.control import Controls, control_source, scrape_failures
from router.metrics.doors import Doors, door_source
from router.metrics.replica_pages import ReplicaPages
from router.metrics.request_families import request_source
from router.metrics.requests import RequestTally
from router.metrics.slo import Slos, slo_source
from router.metrics.store import store_source
from router.metrics.traces import trace_source
from router.replicas.fleet import Fleet
from router.service.backstage import Backstage


class Metrics:
    """Belongs to the event loop."""

    def __init__(
        self, requests: RequestTally, control: Controls, backstage: Backstage, doors: Doors, fleet: Fleet
    ) -> None:
        self.replicas = ReplicaPages(fleet)
        self.page = Page()
        self.page.add(partial(request_source, requests))
        self.page.add(partial(control_source, control))
        self.page.add(partial(after_source, backstage.aftermath, backstage.shadows, backstage.judging))
        self.page.add(partial(store_source, backstage.store))
        self.page.add(partial(door_source, doors))
        self.page.add(partial(scrape_failures, self.replicas.failures, tuple(requests.fares)))

    def trace(self, outbox: Outbox | None) -> None:
        """What became of the traces that are recorded is on the page from now on."""
        self.page.add(partial(trace_source, outbox))

    def publish(self, slos: Slos) -> None:
        """Their figures are on the page from now on."""
        self.page.add(partial(slo_source, slos))
