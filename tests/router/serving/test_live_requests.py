"""The total size of all live prompts is bounded, and every reserved byte is released."""

from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import RouterConfig
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.dispatch.live_requests import LiveRequests
from router.request import Request
from tests.router.routing.sample_requests import validated_request
from tests.router.serving.harness import infer_request, running_router
from tests.router.serving.spy import hang, running_spy
from tests.specialist.server.harness import run

LARGE = "x" * 400_000


async def test_prompts_that_are_too_large_together_are_refused() -> None:
    router = RouterConfig(max_inflight_bytes=4 << 20)
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}, router=router) as routed:
        calls = [routed.generate(infer_request(LARGE)) for _ in range(10)]
        await routed.until(lambda: spy.num_live == 10)
        result = await routed.ask(infer_request(LARGE))
        assert result.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert result.reason == error_pb2.ERROR_REASON_QUEUE_FULL
        assert result.error is not None and "4,194,304 bytes" in result.error.limit
        assert result.receipt is not None
        for call in calls:
            call.cancel()
        await routed.idle()
        calls = [routed.generate(infer_request(LARGE)) for _ in range(10)]
        await routed.until(lambda: spy.num_live == 10)
        for call in calls:
            call.cancel()


def sized(number: int, size: int) -> Request:
    return replace(validated_request(request_id=str(number)), num_bytes=size)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=40))
def test_requests_in_flight_exceed_the_byte_limit_only_if_there_is_one_request(moves: list[tuple[bool, int]]) -> None:
    async def scenario() -> None:
        requests, inside = LiveRequests(1000, 100), list[Request]()
        for number, (enters, size) in enumerate(moves):
            total = sum(live.num_bytes for live in inside)
            if not enters:
                if inside:
                    requests.leave(inside.pop(size % len(inside)))
            elif not inside or total + size <= 100:
                inside.append(sized(number, size))
                requests.enter(inside[-1])
            else:
                with pytest.raises(Refusal):
                    requests.enter(sized(number, size))
        assert len(requests) == len(inside)

    run(scenario())
