"""Exports spans on a separate thread. The queue is bounded; requests whose spans are dropped are counted."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from octet.terminal import install_hint

if TYPE_CHECKING:
    from octet.telemetry.requests import Span

_log = logging.getLogger(__name__)
MOST_QUEUED = 2048  # requests whose spans wait. Beyond this limit, new ones are dropped and counted.
BATCH_SIZE = 64
FLUSH_SECONDS = 1.0  # queued spans are sent at least this often; a full batch is sent immediately
_JOIN_SECONDS = 1.0
_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED = "OTEL_SDK_DISABLED"
_EXPORTER_PACKAGE = "opentelemetry.exporter.otlp.proto.grpc"
_ENDPOINT_SHAPE = "must be http://HOST:PORT or https://HOST:PORT"

SpanSource: TypeAlias = Callable[[], "Sequence[Span]"]
"""Builds the spans of one request. Called on the exporter's thread."""


class SpanSender(Protocol):
    def send(self, spans: "Sequence[Span]") -> bool:
        """Send the spans and return whether the collector accepted them. This may take a long time."""

    def close(self) -> None:
        """Cause a running `send` on another thread to return soon."""


def open_span_exporter(endpoint: str, resource: Mapping[str, str]) -> "SpanExporter":
    """Create an exporter. `resource` describes this process with OpenTelemetry's attributes."""
    return SpanExporter(lambda: open_otlp_sender(endpoint, resource))


def open_otlp_sender(endpoint: str, resource: Mapping[str, str]) -> SpanSender:
    """Open a sender. This imports OpenTelemetry, which takes a while."""
    from octet.telemetry.otlp import OtlpSender

    return OtlpSender(endpoint, resource)


class SpanExporter:
    def __init__(
        self,
        open_sender: Callable[[], SpanSender],
        *,
        most: int = MOST_QUEUED,
        batch: int = BATCH_SIZE,
        every: float = FLUSH_SECONDS,
    ) -> None:
        """`open_sender` is called on the exporter's thread."""
        self._open_sender = open_sender
        self._most = most
        self._batch = batch
        self._every = every
        self._queue: deque[SpanSource] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._sender: SpanSender | None = None
        self._closing = False
        self._is_failing = False
        self.sent = 0
        self.dropped = 0  # because the queue was full, or the collector did not accept them

    def start(self) -> None:
        """Open the sender in the background. Its imports may be slow, so start before requests are served."""
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def put(self, source: SpanSource) -> None:
        with self._changed:
            if self._closing or len(self._queue) >= self._most:
                self.dropped += 1
                return
            self._queue.append(source)
            if len(self._queue) in (1, self._batch):
                self._changed.notify()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def close(self, seconds: float) -> None:
        """Keep sending queued spans for up to `seconds`, then drop the rest and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive() and self._sender is not None:
            self._drop_queue()
            self._sender.close()
            self._thread.join(_JOIN_SECONDS)
        if self.dropped:
            _log.warning("The traces of %d requests were lost; those of %d were sent.", self.dropped, self.sent)

    def _run(self) -> None:
        try:
            sender = self._sender = self._open_sender()
        except Exception:
            _log.error("Traces cannot be exported; all of them are dropped.", exc_info=True)
            self._drop_queue()
            return
        while sources := self._next_batch():
            self._send(sender, sources)
        sender.close()

    def _next_batch(self) -> list[SpanSource]:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._queue)
            self._changed.wait_for(lambda: self._closing or len(self._queue) >= self._batch, self._every)
            return [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]

    def _send(self, sender: SpanSender, sources: Sequence[SpanSource]) -> None:
        try:
            is_taken = sender.send([span for source in sources for span in source()])
        except Exception:
            _log.error("Failed to send the traces of %d requests.", len(sources), exc_info=True)
            is_taken = False
        with self._changed:
            self.sent += len(sources) if is_taken else 0
            self.dropped += 0 if is_taken else len(sources)
        if is_taken == self._is_failing:  # log every change once
            self._is_failing = not is_taken
            if is_taken:
                _log.info("The collector accepts traces again; those of %d requests were lost.", self.dropped)
            else:
                _log.warning("The collector does not accept traces; dropping them until it does.")

    def _drop_queue(self) -> None:
        with self._changed:
            self._closing = True
            self.dropped += len(self._queue)
            self._queue.clear()


def add_trace_option(parser: Any, configured: str = "") -> None:
    """Add `--otlp`. The help text mentions `configured`, the configuration key for the same value."""
    default = " or ".join(filter(None, (configured, "OTEL_EXPORTER_OTLP_ENDPOINT")))
    about = f"export traces to http://HOST:4317, or https, by OTLP over gRPC (default: {default}, otherwise off)"
    parser.add_argument("--otlp", metavar="URL", help=about)


def resolve_otlp_endpoint(given: str | None, configured: str, environment: Mapping[str, str]) -> str:
    """Return the endpoint; empty if traces are off. Raises ValueError if they cannot be exported."""
    candidates = [("--otlp", given or ""), ("telemetry.otlp", configured)]
    candidates += [(name, environment.get(name, "")) for name in _ENDPOINT_VARIABLES]
    name, endpoint = next(((name, text) for name, text in candidates if text), ("", ""))
    if not endpoint or environment.get(_DISABLED, "").lower() == "true":
        return ""
    if error := otlp_endpoint_error(endpoint):
        raise ValueError(f"{name} {error}")
    if not _is_installed(_EXPORTER_PACKAGE):
        raise ValueError(f"{name} needs opentelemetry, which is not installed: {install_hint('otlp')}")
    return endpoint


def otlp_endpoint_error(endpoint: str) -> str:
    """Return what is wrong, or "" for a valid endpoint. The endpoint is not quoted: it may contain a password."""
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError:
        return _ENDPOINT_SHAPE
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        return _ENDPOINT_SHAPE
    if url.username is not None or url.password is not None:
        return "must not contain a name or a password: use OTEL_EXPORTER_OTLP_HEADERS"
    if url.path not in ("", "/") or url.query or url.fragment:
        return "must not have a path: OTLP over gRPC has none"
    return ""


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
