"""A request that the router ends gets a reason, unless its caller is gone."""

import asyncio

import pytest

from octet.rpc.refusal import Refusal, cancelled
from router.dispatch.live_requests import LiveRequests
from router.request import Request
from tests.router.routing.sample_requests import validated_request


@pytest.mark.parametrize("caller_goes", [False, True])
async def test_ended_request_has_a_reason_unless_its_caller_is_gone(caller_goes: bool) -> None:
    requests = LiveRequests(1, 1 << 20)
    entered: asyncio.Future[Request] = asyncio.get_running_loop().create_future()

    async def answer() -> Refusal | None:
        request = validated_request()
        requests.enter(request)
        entered.set_result(request)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            refusal = request.claim_end()
            if refusal is None:
                raise
            return refusal
        finally:
            requests.leave(request)
        return None

    task = asyncio.create_task(answer())
    ending = cancelled()
    (await entered).end(ending)
    if caller_goes:
        task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError) if caller_goes else result is ending
    assert not len(requests)
