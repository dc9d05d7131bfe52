"""Log lines name their request on every thread and in every process. Packages that are not needed are not loaded."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octet.telemetry.logs import JsonLines
from octet.v1 import error_pb2
from specialist.engines.sim.engine import InjectedFault
from tests.patience import PATIENCE
from tests.router.serving.harness import infer_request, running_router
from tests.router.serving.spy import running_spy
from tests.specialist.server.harness import FREE, run, running_replica, sim

ROOT = Path(__file__).parents[3]
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-00"),)


class RecordingHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[dict[str, str]] = []
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def kept() -> Iterator[RecordingHandler]:
    handler = RecordingHandler()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_the_engine_thread_logs_the_failed_request(kept: RecordingHandler) -> None:
    stumbles: list[InjectedFault] = []

    async def spans_of_request() -> None:
        build = sim(FREE, faults=lambda _: stumbles[0] if stumbles else None)
        async with running_replica(build) as served, running_router({"writer": [served.address]}) as routed:
            stumbles.append(InjectedFault("fail_before"))
            answered = await routed.ask(infer_request(request_id="mine"), metadata=HEADERS)
            assert answered.reason == error_pb2.ERROR_REASON_ENGINE_FAILED

    run(spans_of_request())
    about = [line for line in kept.lines if line["logger"].startswith("specialist")]
    assert about and {(line["request_id"], line["trace_id"]) for line in about} == {("mine", TRACE)}


def test_a_router_error_logs_its_request(kept: RecordingHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    async def spans_of_request() -> None:
        async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
            monkeypatch.setattr(routed.server.service, "_answer", None)
            answered = await routed.ask(infer_request(request_id="mine"), metadata=HEADERS)
            assert answered.reason == error_pb2.ERROR_REASON_INTERNAL

    run(spans_of_request())
    (line,) = [line for line in kept.lines if line["logger"] == "router.serving"]
    assert (line["request_id"], line["trace_id"]) == ("mine", TRACE)
    assert "TypeError" in line["exception"]


def test_opentelemetry_is_loaded_only_for_traces() -> None:
    code = (
        "import router.server, octet.cli.router, specialist.server.server, octet.cli.specialist, octet.cli.serve, sys;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=PATIENCE).returncode == 0
