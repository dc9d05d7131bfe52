"""A router's traces: which requests are recorded, and where that is sent."""

import asyncio
import secrets
import time
from uuid import uuid4

from octet.clock import Clock
from octet.config.ensemble import TelemetryConfig
from octet.telemetry.otlp import outbox_to
from octet.telemetry.outbox import Outbox
from router.observe.observers import Observers
from router.reception.trace import Tracer
from router.trace.tracing import Tracing

SERVICE = "octet-router"
_FLUSH_SECONDS = 3.0
"""For what is still to be sent, where there is time at all."""


class Traces:
    """Without an endpoint nothing is recorded, and callers' traces only pass through."""

    def __init__(self, endpoint: str, config: TelemetryConfig, clock: Clock, observers: Observers) -> None:
        self.outbox: Outbox | None = None
        self.tracing: Tracing | None = None
        if endpoint:
            resource = {"service.name": SERVICE, "service.instance.id": str(uuid4())}
            self.outbox = outbox_to(endpoint, resource)
            self.tracing = Tracing(self.outbox, clock, time.time_ns, secrets.token_bytes)
            observers.add(self.tracing, gaps=False)
        self.tracer = Tracer(secrets.token_bytes, config.sample if endpoint else None)

    def reload(self, config: TelemetryConfig) -> None:
        """The share; where they go needs a restart."""
        if self.outbox is not None:
            self.tracer.sample = config.sample

    def start(self) -> None:
        if self.outbox is not None:
            self.outbox.start()

    async def close(self, grace: float) -> None:
        if self.outbox is not None:
            await asyncio.to_thread(self.outbox.close, min(grace, _FLUSH_SECONDS))
