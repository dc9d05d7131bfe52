"""Where requests come in: what is under way, what HTTP answered, whom the gate turned away, jobs."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from octet.telemetry.families import counter, gauge
from octet.telemetry.outcome import reason_name
from octet.telemetry.page import Build
from octet.v1 import error_pb2
from router.dispatch.live import LiveRequests
from router.jobs.jobs import Jobs
from router.keys.gate import Gate
from router.metrics.request_families import build_info

_GATE = (error_pb2.ERROR_REASON_UNAUTHENTICATED, error_pb2.ERROR_REASON_FORBIDDEN, error_pb2.ERROR_REASON_KEY_LIMIT)
_ENDS = ("done", "failed", "cancelled")
Responses = Counter[tuple[str, int]]
"""By route, as the table of routes writes it, and status; an empty route is none of them."""


@dataclass(frozen=True, slots=True)
class Doors:
    live: LiveRequests
    gate: Gate
    jobs: Jobs
    responses: Responses
    num_connections: Callable[[], int]
    """Of HTTP."""
    is_warm: Callable[[], bool]
    is_draining: Callable[[], bool]
    memory_share: Callable[[], float | None]
    """None where there is no limit."""
    version: str


def door_source(doors: Doors) -> Build:
    responses, refused = tuple(doors.responses.items()), doors.gate.refused
    turned_away = [((reason_name(reason),), refused[reason]) for reason in _GATE]
    connections, warm, draining = doors.num_connections(), doors.is_warm(), doors.is_draining()
    submitted, ended = doors.jobs.tally.submitted, [((each,), doors.jobs.tally.ended[each]) for each in _ENDS]
    memory = doors.memory_share() or 0.0
    answering, watchers = doors.jobs.num_running, len(doors.jobs.watchers)

    def build() -> Iterator[Metric]:
        yield build_info(doors.version)
        yield gauge("octet_warm", "Whether every specialist has had a warm replica.", (), [((), warm)])
        yield gauge("octet_draining", "Whether nothing new is taken.", (), [((), draining)])
        yield from _live(doors.live)
        about = "Memory that is taken of what the kernel lets the process have; 0 where there is no limit."
        yield gauge("octet_memory_share", about, (), [((), memory)])
        yield counter(
            "octet_http_responses_total",
            "What HTTP answered, by route and status; route none: there is no such one.",
            ("route", "status"),
            (((route or "none", str(status)), num) for (route, status), num in responses),
        )
        yield gauge("octet_http_connections", "Connections of HTTP that are open.", (), [((), connections)])
        about = "Calls that were not let in: unauthenticated, forbidden, key_limit."
        yield counter("octet_gate_refusals_total", about, ("reason",), turned_away)
        yield gauge("octet_jobs_running", "Jobs that this router answers now.", (), [((), answering)])
        yield gauge("octet_job_watchers", "Callers that follow a job.", (), [((), watchers)])
        yield counter("octet_jobs_submitted_total", "Jobs that were put on record.", (), [((), submitted)])
        about = "Jobs that this router brought to their ends: done, failed, cancelled."
        yield counter("octet_jobs_ended_total", about, ("status",), ended)

    return build


def _live(live: LiveRequests) -> Iterator[Metric]:
    yield gauge("octet_inflight_requests", "Requests that are being answered.", (), [((), len(live))])
    yield gauge("octet_inflight_requests_limit", "Requests that may be answered at once.", (), [((), live.most)])
    yield gauge("octet_inflight_bytes", "Of what requests under way were asked.", (), [((), live.num_bytes)])
