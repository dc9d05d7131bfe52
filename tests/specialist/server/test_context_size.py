"""A caller may give its request less context than the replica has."""

import random

import grpc

from octet.v1 import specialist_pb2 as wire
from tests.specialist.server.harness import ask, asking, serving

CONTEXT = 512


async def test_prompt_and_answer_stay_within_it() -> None:
    draw = random.Random(4)
    async with serving() as served:
        for _ in range(60):
            size = draw.randint(8, 40)
            length, wanted = draw.randint(1, 45), draw.randint(1, 50)
            heard = await ask(
                served.client, asking("x" * length, context_size=size, max_tokens=wanted, ignore_eos=True)
            )
            if length >= size:
                assert heard.accepted is None and heard.error is not None and heard.error.error is not None
                told = heard.error.error
                assert heard.error.code == grpc.StatusCode.INVALID_ARGUMENT
                assert told.reason == wire.ERROR_REASON_PROMPT_TOO_LONG
                assert (told.field, told.value) == ("context_size", str(size))
                assert str(length) in told.message
            else:
                assert heard.accepted is not None and heard.error is None
                assert heard.accepted.max_tokens == len(heard.tokens) == min(wanted, size - length)


async def test_it_is_in_range_and_described() -> None:
    async with serving() as served:
        for size in (-1, 0, 7, CONTEXT + 1):
            heard = await ask(served.client, asking(context_size=size))
            assert heard.error is not None and heard.error.error is not None
            assert str(heard.error) == f"context_size must be in [8, {CONTEXT}], got {size}"
        heard = await ask(served.client, asking(context_size=CONTEXT))
        assert heard.error is None
        described = {limit.field: limit.limit for limit in (await served.client.describe()).limits}
        assert described["context_size"] == f"in [8, {CONTEXT}]"
