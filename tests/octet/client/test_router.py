"""The SDK against a real router and replica."""

import asyncio
from collections.abc import Callable

import pytest

from octet import AsyncClient, Busy, Cancelled, Client, InvalidRequest, NotFound, OctetError
from specialist.engines.sim.engine import CostModel
from tests.router.http.harness import SLOW
from tests.router.serving.harness import RouterHarness, running_router
from tests.specialist.server.harness import QUICK, ReplicaHarness, run, running_replica, sim

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def with_router(ask: Callable[[Client], object], cost: CostModel = QUICK) -> None:
    """Call `ask` with a blocking client of a real router. Then check that no block has leaked."""

    async def scenario() -> None:
        async with running_replica(sim(cost)) as served, running_router({"writer": [served.address]}) as routed:

            def call() -> None:
                with Client(routed.address) as client:
                    ask(client)

            await asyncio.to_thread(call)
            await all_free(served, routed)

    run(scenario())


async def all_free(served: ReplicaHarness, routed: RouterHarness) -> None:
    await served.idle()
    await routed.idle()
    served.check_whole()


def test_a_stream_and_its_receipt() -> None:
    def ask(client: Client) -> None:
        trace = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
        options = {"force": "writer", "max_tokens": 16, "seed": 3, "ignore_eos": True}
        with client.stream("why?", **options, trace=trace, session="s", priority=7, timeout=20) as answer:  # type: ignore[arg-type]
            tokens = [token for chunk in answer for token in chunk.token_ids]
        receipt = answer.receipt
        assert len(tokens) == 16 and receipt.usage is not None and receipt.usage.completion_tokens == 16
        assert (receipt.specialist, receipt.replica, receipt.priority) == ("writer", "writer-0", 7)
        assert (receipt.decision.source, receipt.trace_id, receipt.session_id) == ("forced", TRACE_ID, "s")
        assert receipt.why and receipt.request_id == answer.request_id and receipt.admission is not None
        assert client.receipt(answer.request_id) == receipt
        whole = client.infer("why?", **options)  # type: ignore[arg-type]
        assert (whole.text, list(whole.token_ids)) == (answer.text, tokens)
        routed = client.route("why?", **options)  # type: ignore[arg-type]
        assert routed.decision == whole.receipt.decision and routed.usage is None

    with_router(ask)


def test_refusals_are_typed_and_have_receipts() -> None:
    def refused(kind: type[OctetError], ask: Callable[[], object]) -> OctetError:
        with pytest.raises(kind) as caught:
            ask()
        return caught.value

    def ask(client: Client) -> None:
        invalid = refused(InvalidRequest, lambda: client.infer("x", priority=10))
        assert invalid.field == "priority" and invalid.receipt is not None and invalid.receipt.error is not None
        assert refused(NotFound, lambda: client.route("x", force="absent")).reason == "unknown_specialist"
        assert refused(NotFound, lambda: client.receipt("never")).reason == "unknown_request"
        assert refused(NotFound, lambda: client.cancel("never")).request_id == "never"
        late = refused(
            Busy,
            lambda: client.infer("x", force="writer", max_tokens=400, ignore_eos=True, timeout=3, request_id="late"),
        )
        assert (late.reason, late.request_id) == ("deadline_unreachable", "late"), (
            "the request must be refused immediately"
        )
        assert late.receipt is not None and late.retry_after is None
        assert "even alone" in str(late) and str(late).endswith("allow more time, or ask for less")

    with_router(ask, SLOW)


def test_leaving_a_stream_reaches_the_engine() -> None:
    def ask(client: Client) -> None:
        with client.stream("x", force="writer", max_tokens=400, ignore_eos=True) as answer:
            for _ in answer:
                break
        assert answer.receipt.specialist == "writer"

    with_router(ask)


async def test_cancelling_by_id_ends_the_stream_of_another_client() -> None:
    async with running_replica(sim(SLOW)) as served, running_router({"writer": [served.address]}) as routed:
        async with AsyncClient(routed.address) as reader, AsyncClient(routed.address) as other:
            async with reader.stream("x", force="writer", max_tokens=400, ignore_eos=True) as answer:
                await anext(answer)
                await other.cancel(answer.request_id)
                with pytest.raises(Cancelled) as caught:
                    async for _ in answer:
                        pass
            assert caught.value.receipt == answer.receipt == await other.receipt(answer.request_id)
        await all_free(served, routed)
