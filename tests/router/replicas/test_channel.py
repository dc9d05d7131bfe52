"""Tokens that the router has not read yet are merged into one message at the replica."""

import grpc

from octet.v1 import specialist_pb2 as wire
from router.dispatch.transport import LOOKAHEAD_BYTES, READ_LIMITS, ReplicaTarget, open_transport
from tests.specialist.server.harness import ReceivedAnswer, expected, generate_request, running_replica, sim

TOKENS = 400
LEAST_BYTES = 10
"""The size of a message with one token."""


async def test_unread_tokens_become_one_message_and_none_is_lost() -> None:
    async with running_replica(sim()) as served:
        channel = open_transport()(ReplicaTarget("0", served.address), READ_LIMITS)
        request = generate_request(max_tokens=TOKENS, ignore_eos=True, seed=3)
        call = channel.stream("/octet.v1.Specialist/Generate", request.SerializeToString())
        received = ReceivedAnswer()
        received.add(wire.GenerateEvent.FromString(await call.read()))
        await served.idle()
        while (raw := await call.read()) is not grpc.aio.EOF:
            received.add(wire.GenerateEvent.FromString(raw))
        await channel.close()
        assert received.tokens == expected(served.replica, request)
        assert received.usage is not None and received.usage.completion_tokens == len(received.tokens) == TOKENS
        most = LOOKAHEAD_BYTES // LEAST_BYTES + 2
        assert len(received.chunks) <= most, f"{len(received.chunks)} messages for {TOKENS} waiting tokens"
