"""A conversation stays on its replica, which reuses the cached tokens of earlier turns."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from specialist.engines.sim.engine import FaultSource, InjectedFault
from specialist.scheduling.step import Step
from specialist.text.prompt import ChatTurn
from tests.router.serving.conversation import Conversation
from tests.router.serving.harness import infer_request, running_router
from tests.specialist.server.harness import QUICK, ReplicaHarness, running_replica, sim

BLOCK = 16
ALL_REUSED = "unspecified"
LONG: dict[str, Any] = {"context": 4096, "num_blocks": 600}


@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_turn_twenty_computes_no_more_than_turn_two_unless_reuse_is_off(prefix_cache: bool) -> None:
    async with (
        running_replica(sim(**LONG, prefix_cache=prefix_cache)) as replica,
        running_router({"writer": [replica.address]}) as routed,
    ):
        conversation = Conversation(routed, {"session_id": "chat"})
        for _ in range(20):
            assert (await conversation.turn()).code == grpc.StatusCode.OK
        assert (conversation.computed[19] <= 1.5 * conversation.computed[1]) == prefix_cache
        if prefix_cache:
            assert conversation.misses == ["first_time", *[ALL_REUSED] * 19]
            for computed, fresh in zip(conversation.computed[1:], conversation.fresh, strict=True):
                assert fresh <= computed < fresh + BLOCK, "only a partial last block may be computed again"
        else:
            assert set(conversation.misses) == {"cache_off"}
            assert conversation.computed == [receipt.usage.prompt_tokens for receipt in conversation.receipts]


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"session_id": "s", "metadata": {"session_id": "m"}, "user_id": "u"}, "session_id"),
        ({"metadata": {"session_id": "m", "more": "x"}, "user_id": "u"}, "metadata"),
        ({"user_id": "u"}, "user"),
        ({}, "none"),
    ],
)
async def test_the_receipt_names_the_source_of_the_session_key(fields: dict[str, Any], source: str) -> None:
    async with running_replica(sim(**LONG)) as replica, running_router({"writer": [replica.address]}) as routed:
        conversation = Conversation(routed, fields)
        for _ in range(2):
            await conversation.turn()
        assert [receipt.session_source for receipt in conversation.receipts] == [source] * 2
        assert conversation.receipts[0].session_id == {"session_id": "s", "metadata": "m"}.get(source, "")
        assert conversation.receipts[1].usage.cache_hit_tokens > 0, "reuse must need no session key"
        unknown = "no_session" if source == "none" else "first_time"
        assert conversation.misses == [unknown, "no_session" if source == "none" else ALL_REUSED]


async def test_a_conversation_stays_on_its_replica_and_moves_when_it_dies() -> None:
    async with AsyncExitStack() as stack:
        replicas = {}
        for _ in range(2):
            own = await stack.enter_async_context(AsyncExitStack())
            served: ReplicaHarness = await own.enter_async_context(running_replica(sim(**LONG)))
            replicas[served.address] = own
        routed = await stack.enter_async_context(running_router({"writer": list(replicas)}))
        conversation = Conversation(routed, {"metadata": {"session_id": "chat"}})
        for _ in range(4):
            await conversation.turn()
        (home,) = {receipt.replica for receipt in conversation.receipts}
        address = next(each.target.address for each in routed.server.fleet.replicas if each.name == home)
        await replicas[address].aclose()
        for _ in range(3):
            await conversation.turn()
        assert home not in {receipt.replica for receipt in conversation.receipts[4:]}
        assert conversation.misses == ["first_time", *[ALL_REUSED] * 3, "first_time", *[ALL_REUSED] * 2]
        assert conversation.receipts[4].usage.cache_hit_tokens == 0


async def test_a_cancelled_turn_stays_cached() -> None:
    """The prompt and the received tokens are reused, except for a partial last block."""
    async with AsyncExitStack() as stack:
        build = sim(QUICK, **LONG)
        served = [await stack.enter_async_context(running_replica(build, piece_gap=0.0)) for _ in range(2)]
        routed = await stack.enter_async_context(running_router({"writer": [each.address for each in served]}))
        conversation = Conversation(routed, {"session_id": "chat", "max_tokens": 400, "ignore_eos": True})
        await conversation.cut_turn(40)
        await routed.idle()
        for each in served:
            await each.idle()
        await conversation.turn(max_tokens=8)
        words = served[0].replica.codec
        question, answer = conversation.messages[0], conversation.messages[1].content
        before = len(words.render([ChatTurn(question.role, question.content)])) + len(words.encode(answer))
        assert conversation.receipts[0].usage.cache_hit_tokens >= (before - 1) // BLOCK * BLOCK
        assert len(answer) >= 40


def failing_after(num_steps: int) -> FaultSource:
    def fault(step: Step) -> InjectedFault | None:
        return InjectedFault("fail_before") if step.number == num_steps else None

    return fault


async def test_a_failed_turn_stays_cached() -> None:
    async with AsyncExitStack() as stack:
        served = [
            await stack.enter_async_context(running_replica(sim(**LONG, faults=failing_after(40)))) for _ in range(2)
        ]
        routed = await stack.enter_async_context(running_router({"writer": [each.address for each in served]}))
        conversation = Conversation(routed, {"session_id": "chat", "ignore_eos": True})
        failed = await conversation.turn(max_tokens=200)
        assert failed.reason == error_pb2.ERROR_REASON_ENGINE_FAILED and failed.text
        await conversation.turn()
        first, second = conversation.receipts
        assert first.replica == second.replica
        computed = first.usage.prompt_tokens + first.usage.completion_tokens - 1
        assert second.usage.cache_hit_tokens == computed // BLOCK * BLOCK
        assert conversation.misses == ["first_time", ALL_REUSED]


async def test_sessions_of_tenants_are_isolated() -> None:
    async with running_replica(sim(**LONG)) as replica, running_router({"writer": [replica.address]}) as routed:
        mine = Conversation(routed, {"session_id": "chat", "tenant_salt": b"mine"})
        theirs = Conversation(routed, {"session_id": "chat", "tenant_salt": b"theirs"})
        for _ in range(2):
            await mine.turn()
        for _ in range(2):
            await theirs.turn()
        assert mine.misses == theirs.misses == ["first_time", ALL_REUSED]
        assert theirs.receipts[0].usage.cache_hit_tokens == 0


async def test_unexpected_events_are_violations() -> None:
    async with running_replica(sim(**LONG)) as replica, running_router({"writer": [replica.address]}) as routed:
        conversation = Conversation(routed, {"session_id": "chat"})
        await conversation.turn(max_tokens=64, ignore_eos=True)
        conversation.messages[
            1
        ].content = "A different answer that the replica never gave, long enough for several blocks of text"
        await conversation.turn()
        assert conversation.misses == ["first_time", "diverged"]
        same = conversation.receipts[0].usage.prompt_tokens
        assert conversation.receipts[1].usage.cache_hit_tokens == same // BLOCK * BLOCK, (
            "tokens before the difference must be reused"
        )


async def test_evicted_blocks_are_reported() -> None:
    async with (
        running_replica(sim(context=1024, num_blocks=64)) as replica,
        running_router({"writer": [replica.address]}) as routed,
    ):
        conversation = Conversation(routed, {"session_id": "chat"})
        await conversation.turn()
        crowd = [routed.ask(infer_request(f"{n} " * 150, session_id=str(n))) for n in range(8)]
        assert all(result.code == grpc.StatusCode.OK for result in await asyncio.gather(*crowd))
        await conversation.turn()
        assert conversation.misses == ["first_time", "evicted"]


async def test_a_refused_request_leaves_no_session_affinity() -> None:
    async with running_replica(sim(**LONG)) as replica, running_router({"writer": [replica.address]}) as routed:
        result = await routed.ask(infer_request("x" * 9000, session_id="chat"))
        assert result.receipt is not None and result.receipt.usage == wire.Usage()
        assert result.code == grpc.StatusCode.INVALID_ARGUMENT
        assert len(routed.server.fleet.replica_sets["writer"].affinity._replicas) == 0
