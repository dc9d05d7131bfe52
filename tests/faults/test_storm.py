"""Row 6 of docs/reliability.md: callers retry immediately against a specialist that always fails."""

import asyncio

from octet.rpc.handlers import Context
from octet.rpc.refusal import engine_failed
from octet.v1 import specialist_pb2
from tests.faults.figures import Figure
from tests.router.serving.harness import infer_request, running_router
from tests.router.serving.spy import running_spy

CALLERS = 16


async def test_6_a_retry_storm_adds_little_load_on_replicas(long: bool, figure: Figure) -> None:
    async def fail(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await asyncio.sleep(0.02)  # long enough that all callers have a request running
        raise engine_failed("x")

    async with (
        running_spy(fail) as one,
        running_spy(fail) as two,
        running_spy(fail) as three,
        running_router({"writer": [each.address for each in (one, two, three)]}) as routed,
    ):
        offered = 0

        async def caller() -> None:
            nonlocal offered
            for _ in range(250 if long else 25):
                offered += 1
                received = await routed.ask(infer_request())
                assert received.error is not None

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        attempts = sum(len(spy.asked) for spy in (one, two, three))
        assert attempts > 0
        figure(6, "attempts for each request", attempts / offered, "", "<= 1.2")
