"""Replica processes that are killed, stopped and restarted while they answer."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from octet.client.replica import SpecialistClient
from octet.rpc.handlers import Context
from octet.v1 import error_pb2, specialist_pb2
from router.routing.validation import MAX_TIMEOUT_MS
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.router.serving.harness import CallResult, RouterHarness, infer_request, patient_dispatch, running_router
from tests.router.serving.spy import ACCEPTED, CHUNK, USAGE, running_spy
from tests.specialist.server.harness import QUICK, long_answer, run, running_replica, sim
from tests.specialist.server.test_process import OCTET, ROOT

_ARGUMENTS = ("specialist", "--engine", "sim", "--name", "writer", "--kv-blocks", "512", "--port")


class Process:
    """A process with a simulated replica that keeps its port across restarts."""

    def __init__(self, port: int) -> None:
        self.port, self.address = port, f"127.0.0.1:{port}"
        self.popen = subprocess.Popen(
            [sys.executable, "-c", OCTET, *_ARGUMENTS, str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        if self.popen.stdout is None:
            raise RuntimeError("no pipe")
        line = self.popen.stdout.readline()
        if f" ready on {self.address}" not in line:
            self.end()
            raise RuntimeError(f"the replica did not start: {line!r}")

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


@contextmanager
def processes(count: int) -> Iterator[list[Process]]:
    made: list[Process] = []
    try:
        made.extend(Process(free_port()) for _ in range(count))
        yield made
    finally:
        for process in made:
            process.end()


async def _start(routed: RouterHarness, count: int, num_tokens: int = 3000) -> list[asyncio.Task[CallResult]]:
    """Start long answers, wait until each has begun, and return their tasks. An answer that ends before fails."""
    seen: list[int] = []

    async def ask(index: int) -> CallResult:
        result = CallResult()
        try:
            patient: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True, "timeout_ms": MAX_TIMEOUT_MS}
            async for event in routed.generate(infer_request(f"{index}", **patient)):
                result.add(event)
                if len(result.chunks) == 1:
                    seen.append(index)
        except grpc.aio.AioRpcError as error:
            result.end(error)
        return result

    tasks = [asyncio.create_task(ask(index)) for index in range(count)]
    await routed.until(lambda: len(set(seen)) == count or any(task.done() for task in tasks))
    assert len(set(seen)) == count, [task.result() for task in tasks if task.done()]
    return tasks


def test_replica_killed_or_stopped_during_an_answer_is_reported_and_recovers() -> None:
    async def scenario(first: Process, second: Process) -> None:
        dispatch = patient_dispatch(hang_seconds=4.0)
        async with running_router({"writer": [first.address, second.address]}, dispatch=dispatch) as routed:
            await routed.until(lambda: all(each.is_usable for each in routed.server.fleet.replicas))
            asked = await _start(routed, 8)
            first.end()
            lost = routed.server.fleet.replicas[0]
            await routed.until(lambda: not lost.is_connected and any(task.done() for task in asked))
            result = [task.result() for task in asked if task.done()]
            assert {each.reason for each in result} == {error_pb2.ERROR_REASON_REPLICA_LOST}
            assert all(each.receipt is not None and each.receipt.replica == "writer-0" for each in result)
            again = await asyncio.gather(*(routed.ask(infer_request()) for _ in range(10)))
            assert {each.code for each in again} == {grpc.StatusCode.OK}
            for task in asked:
                task.cancel()

            alone = await _start(routed, 1)
            os.kill(second.popen.pid, signal.SIGSTOP)
            async with asyncio.timeout(PATIENCE):
                cut = await alone[0]
            assert (cut.code, cut.reason) == (grpc.StatusCode.UNAVAILABLE, error_pb2.ERROR_REASON_REPLICA_LOST)
            async with asyncio.timeout(PATIENCE):
                refused = await routed.ask(infer_request(timeout_ms=4000))
            assert refused.reason == error_pb2.ERROR_REASON_NO_REPLICA, "it waits for half of its time"
            os.kill(second.popen.pid, signal.SIGCONT)
            await routed.until(lambda: routed.server.fleet.replica_sets["writer"].is_usable)
            assert (await routed.ask(infer_request())).code is grpc.StatusCode.OK
            await routed.idle()

    with processes(2) as made:
        run(scenario(*made))


def test_rolling_restart_under_load_fails_no_request() -> None:
    async def scenario(made: list[Process]) -> None:
        failed: list[CallResult] = []
        num_answered = 0
        over = asyncio.Event()

        async def load(routed: RouterHarness) -> None:
            nonlocal num_answered
            while not over.is_set():
                result = await routed.ask(infer_request(f"{num_answered} times", max_tokens=4))
                failed.extend([result] if result.code is not grpc.StatusCode.OK else [])
                num_answered += 1
                await asyncio.sleep(0.01)

        async with running_router({"writer": [process.address for process in made]}) as routed:
            loads = [asyncio.create_task(load(routed)) for _ in range(4)]
            for index, process in enumerate(made):
                async with SpecialistClient(process.address) as client:
                    events = client.generate(long_answer(3000, timeout_ms=MAX_TIMEOUT_MS))
                    await anext(events)
                    process.popen.send_signal(signal.SIGTERM)
                    enough = num_answered + 40
                    await routed.until(lambda: num_answered > enough)  # noqa: B023
                    assert process.popen.poll() is None, "the long answer keeps the replica draining"
                await asyncio.to_thread(process.popen.wait)
                process.end()
                made[index] = await asyncio.to_thread(Process, process.port)
                await routed.until(lambda: all(each.is_usable for each in routed.server.fleet.replicas))
            over.set()
            await asyncio.gather(*loads)
            assert not failed and num_answered > 20

    with processes(2) as made:
        run(scenario(made))


async def test_two_routers_share_their_replicas() -> None:
    build = sim(QUICK)
    async with running_replica(build) as one, running_replica(build) as two:
        places = {"writer": [one.address, two.address]}
        async with running_router(places) as first, running_router(places) as second:
            asked = [router.ask(infer_request(f"{index}")) for index in range(30) for router in (first, second)]
            result = await asyncio.gather(*asked)
            assert {each.code for each in result} == {grpc.StatusCode.OK}
            by_replica = [sum(each.receipt.replica == f"writer-{n}" for each in result if each.receipt) for n in (0, 1)]
            assert min(by_replica) >= 15
            await first.idle()
            await second.idle()


async def test_requests_are_answered_without_load_reports() -> None:
    async with running_replica(sim(), max_watchers=1) as one, running_replica(sim(), max_watchers=1) as two:
        async for _ in one.client.watch_load():
            break
        places = {"writer": [one.address, two.address]}
        async with running_router(places) as seeing, running_router(places) as blind:
            await blind.until(lambda: not any(each.should_report for each in blind.server.fleet.replicas))
            for router in (seeing, blind):
                result = await asyncio.gather(*(router.ask(infer_request()) for _ in range(20)))
                assert {each.code for each in result} == {grpc.StatusCode.OK}
            assert all(each.is_connected for each in blind.server.fleet.replicas)


async def test_a_draining_router_finishes_its_requests_and_refuses_new_ones() -> None:
    may_finish = asyncio.Event()

    async def answer_late(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.write(ACCEPTED)
        await context.write(CHUNK)
        await may_finish.wait()
        await context.write(USAGE)

    async with running_spy(answer_late) as spy, running_router({"writer": [spy.address]}) as routed:
        (running,) = await _start(routed, 1)
        draining = asyncio.create_task(routed.server.drain())
        await routed.until(lambda: routed.server.service.draining)
        refused = await routed.ask(infer_request())
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.UNAVAILABLE,
            error_pb2.ERROR_REASON_DRAINING,
        )
        assert refused.receipt is not None and not draining.done()
        may_finish.set()
        assert (await running).code is grpc.StatusCode.OK
        await draining


async def test_replicas_behind_unix_sockets(tmp_path: Path) -> None:
    socket = tmp_path / "writer.sock"
    async with running_replica(sim(), socket=socket), running_router({"writer": [f"unix:{socket}"]}) as routed:
        assert (await routed.ask(infer_request())).code is grpc.StatusCode.OK
