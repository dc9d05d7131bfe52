"""A router with scripted jobs, which breaks off a caller's watch after given events."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import grpc

from octet.v1 import jobs_pb2 as wire
from octet.v1 import specialist_pb2
from tests.octet.client.server import ScriptedCall, receipt_of
from tests.patience import PATIENCE

_METHODS = {
    "SubmitJob": (wire.SubmitJobRequest, wire.Job),
    "GetJob": (wire.GetJobRequest, wire.Job),
    "ListJobs": (wire.ListJobsRequest, wire.ListJobsResponse),
    "CancelJob": (wire.CancelJobRequest, wire.Job),
}


def job(status: wire.JobStatus, text: str = "", **fields: Any) -> wire.Job:
    return wire.Job(id="job-1", status=status, submitted_unix_ms=1_790_000_000_000, text=text, attempts=1, **fields)


def done(text: str = "one two") -> wire.Job:
    times = {"started_unix_ms": 1_790_000_001_000, "ended_unix_ms": 1_790_000_003_000}
    receipt = receipt_of(wire.InferRequest(request_id="r"), ScriptedCall())
    return job(wire.JOB_STATUS_DONE, text, receipt=receipt, **times)


def events(*contents: "wire.Job | str | int") -> list[wire.JobEvent]:
    """Return one event per item: a job becomes a status event, a string a chunk, and a number a restart."""
    made = []
    for number, each in enumerate(contents, 1):
        if isinstance(each, str):
            made.append(wire.JobEvent(number=number, chunk=specialist_pb2.Chunk(text=each, token_ids=[number])))
        elif isinstance(each, int):
            made.append(wire.JobEvent(number=number, restarted=wire.Restarted(attempt=each)))
        else:
            made.append(wire.JobEvent(number=number, status=each))
    return made


class Jobs:
    def __init__(self, stored: list[wire.JobEvent], cuts: tuple[int, ...], cut_as: grpc.StatusCode) -> None:
        self._stored = stored
        self._cut_as = cut_as
        self._cuts = list(cuts)
        """For each watch, the number of the last event before its connection breaks."""
        self.address = ""
        self.calls: list[Any] = []
        self.hangs = Event()
        self.released = Event()

    def answer(self, name: str, request: Any) -> Any:
        self.calls.append(request)
        if name == "ListJobs":
            return wire.ListJobsResponse(jobs=[done(""), job(wire.JOB_STATUS_QUEUED)])
        if name == "CancelJob":
            return job(wire.JOB_STATUS_CANCELLED)
        return job(wire.JOB_STATUS_QUEUED) if name == "SubmitJob" else done()

    def watch(self, request: wire.WatchJobRequest, context: Any) -> Iterator[wire.JobEvent]:
        self.calls.append(request)
        cut = self._cuts.pop(0) if self._cuts else len(self._stored)
        for event in self._stored:
            if request.after < event.number <= cut:
                yield event
        if cut < len(self._stored):
            context.abort(self._cut_as, "gone")
        if not self._stored[-1].status.HasField("ended_unix_ms") and not self.released.is_set():
            self.hangs.set()
            context.add_callback(self.released.set)
            self.released.wait(PATIENCE)


@contextmanager
def jobs_served(
    *contents: "wire.Job | str | int",
    cuts: tuple[int, ...] = (),
    cut_as: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
) -> Iterator[Jobs]:
    jobs = Jobs(events(*contents), cuts, cut_as)
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([_handler(jobs)])
    jobs.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield jobs
    finally:
        jobs.released.set()
        server.stop(0).wait(PATIENCE)


def _handler(jobs: Jobs) -> Any:
    def unary(name: str, asked: Any, answer: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _: jobs.answer(name, request), asked.FromString, answer.SerializeToString
        )

    methods = {name: unary(name, *kinds) for name, kinds in _METHODS.items()}
    methods["WatchJob"] = grpc.unary_stream_rpc_method_handler(
        jobs.watch, wire.WatchJobRequest.FromString, wire.JobEvent.SerializeToString
    )
    return grpc.method_handlers_generic_handler("octet.v1.Jobs", methods)
