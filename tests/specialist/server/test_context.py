"""A context that does not fit the pool is reported, and one below the minimum is refused."""

import logging

import pytest

from specialist.server.replica import check_context
from specialist.server.settings import MIN_CONTEXT, ReplicaSettings
from tests.specialist.server.harness import ask, generate_request, running_replica, sim


@pytest.mark.parametrize(("asked", "blocks", "said"), [(512, 4, "64 tokens, not 512"), (64, 4, None), (512, 32, None)])
def test_pool_smaller_than_the_context_is_reported(
    caplog: pytest.LogCaptureFixture, asked: int, blocks: int, said: str | None
) -> None:
    with caplog.at_level(logging.WARNING):
        check_context(sim(context=asked, num_blocks=blocks)(), asked)
    assert (said is None and not caplog.messages) or (said is not None and said in caplog.messages[0])


async def test_the_smallest_context_serves() -> None:
    async with running_replica(sim(context=MIN_CONTEXT)) as served:
        received = await ask(served.client, generate_request("x" * (MIN_CONTEXT - 1), ignore_eos=True))
        assert len(received.tokens) == 1


@pytest.mark.parametrize("context", [0, 1, MIN_CONTEXT - 1])
def test_a_smaller_context_is_refused(context: int) -> None:
    with pytest.raises(ValueError, match="context must be at least 8 tokens"):
        ReplicaSettings(context=context)
