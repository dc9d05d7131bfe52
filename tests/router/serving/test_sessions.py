"""A conversation stays where its beginning is, and nothing of it is computed twice."""

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
from tests.router.serving.harness import asking, routing
from tests.router.serving.talk import Talk
from tests.specialist.server.harness import QUICK, Served, serving, sim

BLOCK = 16
ALL_REUSED = "unspecified"
LONG: dict[str, Any] = {"context": 4096, "num_blocks": 600}


@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_turn_twenty_computes_no_more_than_turn_two_unless_reuse_is_off(prefix_cache: bool) -> None:
    async with (
        serving(sim(**LONG, prefix_cache=prefix_cache)) as replica,
        routing({"writer": [replica.address]}) as routed,
    ):
        talk = Talk(routed, {"session_id": "chat"})
        for _ in range(20):
            assert (await talk.turn()).code == grpc.StatusCode.OK
        assert (talk.computed[19] <= 1.5 * talk.computed[1]) == prefix_cache
        if prefix_cache:
            assert talk.misses == ["first_time", *[ALL_REUSED] * 19]
            for computed, fresh in zip(talk.computed[1:], talk.fresh, strict=True):
                assert fresh <= computed < fresh + BLOCK, "the last block, where it is not full"
        else:
            assert set(talk.misses) == {"cache_off"}
            assert talk.computed == [receipt.usage.prompt_tokens for receipt in talk.receipts]


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"session_id": "s", "metadata": {"session_id": "m"}, "user_id": "u"}, "session_id"),
        ({"metadata": {"session_id": "m", "more": "x"}, "user_id": "u"}, "metadata"),
        ({"user_id": "u"}, "user"),
        ({}, "none"),
    ],
)
async def test_the_receipt_says_whose_key_it_was_and_what_it_was_worth(fields: dict[str, Any], source: str) -> None:
    async with serving(sim(**LONG)) as replica, routing({"writer": [replica.address]}) as routed:
        talk = Talk(routed, fields)
        for _ in range(2):
            await talk.turn()
        assert [receipt.session_source for receipt in talk.receipts] == [source] * 2
        assert talk.receipts[0].session_id == {"session_id": "s", "metadata": "m"}.get(source, "")
        assert talk.receipts[1].usage.cache_hit_tokens > 0, "reuse needs no key, only its reasons do"
        unknown = "no_session" if source == "none" else "first_time"
        assert talk.misses == [unknown, "no_session" if source == "none" else ALL_REUSED]


async def test_it_stays_on_its_replica_and_goes_on_elsewhere_when_that_dies() -> None:
    async with AsyncExitStack() as stack:
        replicas = {}
        for _ in range(2):
            own = await stack.enter_async_context(AsyncExitStack())
            served: Served = await own.enter_async_context(serving(sim(**LONG)))
            replicas[served.address] = own
        routed = await stack.enter_async_context(routing({"writer": list(replicas)}))
        talk = Talk(routed, {"metadata": {"session_id": "chat"}})
        for _ in range(4):
            await talk.turn()
        (home,) = {receipt.replica for receipt in talk.receipts}
        address = next(each.target.address for each in routed.server.fleet.replicas if each.name == home)
        await replicas[address].aclose()
        for _ in range(3):
            await talk.turn()
        assert home not in {receipt.replica for receipt in talk.receipts[4:]}
        assert talk.misses == ["first_time", *[ALL_REUSED] * 3, "first_time", *[ALL_REUSED] * 2]
        assert talk.receipts[4].usage.cache_hit_tokens == 0


async def test_a_caller_that_hangs_up_finds_everything_again() -> None:
    """What it had heard, and the prompt, are computed: only the rest of the last block and the new turn are not."""
    async with AsyncExitStack() as stack:
        build = sim(QUICK, **LONG)
        served = [await stack.enter_async_context(serving(build, piece_gap=0.0)) for _ in range(2)]
        routed = await stack.enter_async_context(routing({"writer": [each.address for each in served]}))
        talk = Talk(routed, {"session_id": "chat", "max_tokens": 400, "ignore_eos": True})
        await talk.cut_turn(40)
        await routed.idle()
        for each in served:
            await each.idle()
        await talk.turn(max_tokens=8)
        words = served[0].replica.codec
        question, told = talk.messages[0], talk.messages[1].content
        before = len(words.render([ChatTurn(question.role, question.content)])) + len(words.encode(told))
        assert talk.receipts[0].usage.cache_hit_tokens >= (before - 1) // BLOCK * BLOCK
        assert len(told) >= 40


def failing_after(num_steps: int) -> FaultSource:
    def fault(step: Step) -> InjectedFault | None:
        return InjectedFault("fail_before") if step.number == num_steps else None

    return fault


async def test_an_error_in_the_middle_loses_nothing_that_was_computed() -> None:
    async with AsyncExitStack() as stack:
        served = [await stack.enter_async_context(serving(sim(**LONG, faults=failing_after(40)))) for _ in range(2)]
        routed = await stack.enter_async_context(routing({"writer": [each.address for each in served]}))
        talk = Talk(routed, {"session_id": "chat", "ignore_eos": True})
        failed = await talk.turn(max_tokens=200)
        assert failed.reason == error_pb2.ERROR_REASON_ENGINE_FAILED and failed.text
        await talk.turn()
        first, second = talk.receipts
        assert first.replica == second.replica
        computed = first.usage.prompt_tokens + first.usage.completion_tokens - 1
        assert second.usage.cache_hit_tokens == computed // BLOCK * BLOCK
        assert talk.misses == ["first_time", ALL_REUSED]


async def test_one_tenants_session_says_nothing_to_another() -> None:
    async with serving(sim(**LONG)) as replica, routing({"writer": [replica.address]}) as routed:
        mine = Talk(routed, {"session_id": "chat", "tenant_salt": b"mine"})
        theirs = Talk(routed, {"session_id": "chat", "tenant_salt": b"theirs"})
        for _ in range(2):
            await mine.turn()
        for _ in range(2):
            await theirs.turn()
        assert mine.misses == theirs.misses == ["first_time", ALL_REUSED]
        assert theirs.receipts[0].usage.cache_hit_tokens == 0


async def test_unexpected_events_are_violations() -> None:
    async with serving(sim(**LONG)) as replica, routing({"writer": [replica.address]}) as routed:
        talk = Talk(routed, {"session_id": "chat"})
        await talk.turn(max_tokens=64, ignore_eos=True)
        talk.messages[1].content = "I never said that, I said something else, and it was long enough to count"
        await talk.turn()
        assert talk.misses == ["first_time", "diverged"]
        same = talk.receipts[0].usage.prompt_tokens
        assert talk.receipts[1].usage.cache_hit_tokens == same // BLOCK * BLOCK, "up to where it differs"


async def test_a_crowd_in_between_is_told_as_such() -> None:
    async with (
        serving(sim(context=1024, num_blocks=64)) as replica,
        routing({"writer": [replica.address]}) as routed,
    ):
        talk = Talk(routed, {"session_id": "chat"})
        await talk.turn()
        crowd = [routed.ask(asking(f"{n} " * 150, session_id=str(n))) for n in range(8)]
        assert all(heard.code == grpc.StatusCode.OK for heard in await asyncio.gather(*crowd))
        await talk.turn()
        assert talk.misses == ["first_time", "evicted"]


async def test_a_request_that_was_refused_leaves_no_home() -> None:
    async with serving(sim(**LONG)) as replica, routing({"writer": [replica.address]}) as routed:
        heard = await routed.ask(asking("x" * 9000, session_id="chat"))
        assert heard.receipt is not None and heard.receipt.usage == wire.Usage()
        assert heard.code == grpc.StatusCode.INVALID_ARGUMENT
        assert len(routed.server.fleet.replica_sets["writer"].affinity) == 0
