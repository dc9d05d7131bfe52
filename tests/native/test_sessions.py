"""Twenty turns with a real model behind a real router: earlier answers are not computed again."""

from pathlib import Path

import grpc
import pytest

from octet.clock import SystemClock
from specialist.server.native_replica import create_native_replica
from specialist.server.settings import ReplicaSettings
from tests.router.serving.conversation import Conversation
from tests.router.serving.harness import running_router
from tests.specialist.server.harness import running_replica

BLOCK = 16
TURNS = {True: 20, False: 6}
"""Conversations without a prefix cache are short, because each turn computes all turns before it."""


@pytest.mark.slow
@pytest.mark.bound(300)
@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_the_last_turn_computes_no_more_than_turn_two_unless_reuse_is_off(
    demo_gguf: Path, prefix_cache: bool
) -> None:
    """An earlier answer is reused because the model's template renders it as exactly the tokens that were generated."""
    turns = TURNS[prefix_cache]
    settings = ReplicaSettings(
        name="writer", model=demo_gguf, num_blocks=256, block_size=BLOCK, threads=1, prefix_cache=prefix_cache
    )
    async with (
        running_replica(lambda: create_native_replica(settings, SystemClock())) as replica,
        running_router({"writer": [replica.address]}) as routed,
    ):
        talk = Conversation(routed, {"user_id": "ann", "max_tokens": 12})
        talk.question += ", how it works, who has made it, what it is called and where it was found"
        for _ in range(turns):
            assert (await talk.turn()).code == grpc.StatusCode.OK
        if prefix_cache:
            assert talk.computed[-1] <= 1.5 * talk.computed[1]
            assert talk.misses == ["first_time", *["unspecified"] * (turns - 1)]
            for computed, fresh in zip(talk.computed[1:], talk.fresh, strict=True):
                assert fresh <= computed < fresh + BLOCK, "only a partial last block may be computed again"
        else:
            assert talk.computed[-1] > 2 * talk.computed[1]
