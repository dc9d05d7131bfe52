"""Commands that raise an exception in the engine thread: every caller still gets a final event long before its
deadline."""

import asyncio
from threading import Event
from typing import Any

import pytest

from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.sequence import FinishReason, Request
from specialist.scheduling.step import Step
from tests.patience import PATIENCE
from tests.specialist.server.harness import (
    QUICK,
    ReceivedAnswer,
    ReplicaHarness,
    ask,
    expected,
    generate_request,
    running_replica,
    sim,
)

DEADLINE_SECONDS = 600.0
"""Seconds within which a call must be answered. A lost command would be answered only at the deadline."""


class HeldStep:
    """Holds the engine inside a step, so that commands pile up in the inbox."""

    def __init__(self) -> None:
        self.is_held = Event()
        self._go_on = Event()
        self._go_on.set()

    def hold(self) -> None:
        self.is_held.clear()
        self._go_on.clear()

    def release(self) -> None:
        self._go_on.set()

    def __call__(self, _: Step) -> None:
        if not self._go_on.is_set():
            self.is_held.set()
            self._go_on.wait(PATIENCE)


async def post_behind_step(
    served: ReplicaHarness, step: HeldStep, *requests: wire.GenerateRequest
) -> list[asyncio.Task[ReceivedAnswer]]:
    """Submit the requests while the engine is held inside a step, so that the engine thread finds all of them in its
    inbox together. Return their tasks."""
    calls = []
    for request in requests:
        num_live = served.server.handler.num_live
        calls.append(asyncio.create_task(ask(served.client, request, timeout=DEADLINE_SECONDS)))
        async with asyncio.timeout(PATIENCE):
            while served.server.handler.num_live == num_live:
                await asyncio.sleep(0.001)
    return calls


async def wait_for_hold(step: HeldStep) -> None:
    assert await asyncio.to_thread(step.is_held.wait, PATIENCE)


def reason_of(received: ReceivedAnswer) -> wire.ErrorReason:
    assert received.error is not None and received.error.error is not None, received
    return received.error.error.reason


@pytest.mark.parametrize("broken_end", ["cancelled", "every"])
async def test_command_that_raises_costs_only_its_own_request(broken_end: str) -> None:
    step = HeldStep()
    async with running_replica(sim(QUICK, faults=step)) as served:
        scheduler: Any = served.replica.scheduler
        end = scheduler.end
        raised: list[str] = []

        def end_or_raise(request_id: str, reason: FinishReason, detail: str = "") -> bool:
            if broken_end == "every" or reason == "cancelled":
                raised.append(request_id)
                raise RuntimeError("the scheduler cannot end this request")
            return bool(end(request_id, reason, detail))

        step.hold()
        first = asyncio.create_task(ask(served.client, generate_request("a", max_tokens=400, ignore_eos=True)))
        await wait_for_hold(step)
        scheduler.end = end_or_raise
        (request_id,) = scheduler.ledger.live
        served.server.engine.end(request_id, "cancelled")
        later = [generate_request("b", seed=1), generate_request("c", seed=2)]
        calls = await post_behind_step(served, step, *later)
        step.release()
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(*calls)
            failed = await first
        assert raised
        assert reason_of(failed) == wire.ERROR_REASON_ENGINE_FAILED
        assert [received.tokens for received in answers] == [expected(served.replica, request) for request in later]
        assert not served.server.failed.is_set()
        scheduler.end = end


async def test_every_request_is_answered_when_the_thread_dies_between_two_commands() -> None:
    step = HeldStep()
    async with running_replica(sim(QUICK, faults=step)) as served:
        scheduler: Any = served.replica.scheduler
        submit = scheduler.submit

        def submit_or_exit(request: Request) -> None:
            if len(request.prompt) == len("fatal"):
                raise SystemExit(1)
            submit(request)

        step.hold()
        running = asyncio.create_task(ask(served.client, generate_request("a", max_tokens=400, ignore_eos=True)))
        await wait_for_hold(step)
        scheduler.submit = submit_or_exit
        calls = await post_behind_step(
            served, step, generate_request("ok"), generate_request("fatal"), generate_request("behind")
        )
        step.release()
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(running, *calls)
            await served.server.failed.wait()
        assert [reason_of(received) for received in answers] == [wire.ERROR_REASON_REPLICA_FAILED] * 4
        late = await ask(served.client, generate_request("late"))
        assert reason_of(late) == wire.ERROR_REASON_REPLICA_FAILED
