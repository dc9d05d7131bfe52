"""A request ended from outside says why, unless there is nobody left to be told."""

import asyncio

import pytest

from octet.rpc.refusal import Refusal, cancelled
from router.dispatch.live import Live, LiveRequests
from tests.service.harness import run


@pytest.mark.parametrize("caller_goes", [False, True])
def test_who_is_ended_says_so_and_who_is_gone_as_well_does_not(caller_goes: bool) -> None:
    async def story() -> None:
        requests = LiveRequests(1, 1 << 20)
        entered: asyncio.Future[Live] = asyncio.get_running_loop().create_future()

        async def answer() -> Refusal | None:
            with requests.enter("r", deadline=1e9, num_bytes=1) as live:
                entered.set_result(live)
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    refusal = live.claim_end()
                    if refusal is None:
                        raise
                    return refusal
            return None

        task = asyncio.create_task(answer())
        ending = cancelled()
        (await entered).end(ending)
        if caller_goes:
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError) if caller_goes else result is ending
        assert not len(requests)

    run(story())
