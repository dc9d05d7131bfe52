"""Every call of a large burst without a key is refused with a reason."""

import asyncio
from collections import Counter

import grpc

from octet.v1 import error_pb2
from tests.patience import PATIENCE
from tests.router.keys.keyed import issue_key, running_keyed_router

NUM_CONNECTIONS = 8
NUM_CALLS = 2000
"""More calls than gRPC queues by default."""


async def refused(channel: grpc.aio.Channel) -> tuple[str, int]:
    try:
        await channel.unary_unary("/octet.v1.Inference/Infer")(b"", timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ()).get("octet-error-bin", b"")
        return error.code().name, error_pb2.Error.FromString(raw).reason
    return "OK", 0


async def test_every_call_of_a_burst_gets_a_reason() -> None:
    async with running_keyed_router([issue_key("ann")]) as fronted:
        own = (("grpc.use_local_subchannel_pool", 1),)
        address = fronted.routed.address
        channels = [grpc.aio.insecure_channel(address, options=own) for _ in range(NUM_CONNECTIONS)]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        calls = (refused(channels[number % NUM_CONNECTIONS]) for number in range(NUM_CALLS))
        received = Counter(await asyncio.gather(*calls))
        assert received == {("UNAUTHENTICATED", error_pb2.ERROR_REASON_UNAUTHENTICATED): NUM_CALLS}
        for channel in channels:
            await channel.close()
