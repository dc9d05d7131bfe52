"""A caller may limit its request to less context than the replica has."""

import random

import grpc

from octet.v1 import specialist_pb2 as wire
from tests.specialist.server.harness import ask, generate_request, running_replica

CONTEXT = 512


async def test_prompt_and_answer_stay_within_the_context_size() -> None:
    draw = random.Random(4)
    async with running_replica() as served:
        for _ in range(60):
            size = draw.randint(8, 40)
            length, wanted = draw.randint(1, 45), draw.randint(1, 50)
            received = await ask(
                served.client, generate_request("x" * length, context_size=size, max_tokens=wanted, ignore_eos=True)
            )
            if length >= size:
                assert received.accepted is None and received.error is not None and received.error.error is not None
                reported = received.error.error
                assert received.error.code == grpc.StatusCode.INVALID_ARGUMENT
                assert reported.reason == wire.ERROR_REASON_PROMPT_TOO_LONG
                assert (reported.field, reported.value) == ("context_size", str(size))
                assert str(length) in reported.message
            else:
                assert received.accepted is not None and received.error is None
                assert received.accepted.max_tokens == len(received.tokens) == min(wanted, size - length)


async def test_context_size_has_a_documented_range() -> None:
    async with running_replica() as served:
        for size in (-1, 0, 7, CONTEXT + 1):
            received = await ask(served.client, generate_request(context_size=size))
            assert received.error is not None and received.error.error is not None
            assert str(received.error) == f"context_size must be in [8, {CONTEXT}], got {size}"
        received = await ask(served.client, generate_request(context_size=CONTEXT))
        assert received.error is None
        described = {limit.field: limit.limit for limit in (await served.client.describe()).limits}
        assert described["context_size"] == f"in [8, {CONTEXT}]"
