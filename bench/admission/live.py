"""Runs loads in real time: on a replica behind a socket, optionally with a router in front."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from tempfile import NamedTemporaryFile
from time import monotonic
from typing import Any

import grpc
import uvloop
from grpc import aio

from admission.forecast.estimates import EstimateErrors
from bench.admission.load import LANE, End, Offer, OfferOutcome, Plan, ReplicaSetup, Run, offers
from bench.processes import replica_and_router
from bench.router_site import REPLICA, ROUTER
from bench.slow_periods import record_slow_periods
from octet.client.channel import read_metadata_message
from octet.client.errors import ERROR_METADATA_KEY
from octet.v1 import inference_pb2 as router_wire
from octet.v1 import specialist_pb2 as wire
from router.dispatch.transport import READ_LIMITS, ReplicaTarget, open_transport
from specialist.engines.sim.engine import cost_model_to_json

Stream = Callable[[Offer], Any]  # starts a call
_AFTER: dict[int, End] = {
    wire.ERROR_REASON_SHED: "shed",
    wire.ERROR_REASON_DEADLINE: "late",
    wire.ERROR_REASON_CANCELLED: "cancelled",
}
_CAPACITY = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)


def _limits(offer: Offer) -> dict[str, Any]:
    timeout_ms = max(1, round(offer.patience * 1000))
    return {"max_tokens": offer.max_tokens, "ignore_eos": True, "priority": offer.priority, "timeout_ms": timeout_ms}


async def call(stream: Stream, offer: Offer, start: float) -> OfferOutcome:
    asked, accepted, usage = monotonic(), False, None
    try:
        async for event in stream(offer):
            accepted = True
            usage = _usage(event) or usage
    except aio.AioRpcError as error:
        return _failure(offer, error, asked, monotonic(), start, accepted)
    in_time = usage is not None and usage.timings.total <= offer.patience
    return OfferOutcome(offer, "in time" if in_time else "late", monotonic() - start)


def _failure(
    offer: Offer, error: aio.AioRpcError, asked: float, now: float, start: float, accepted: bool
) -> OfferOutcome:
    """Return the outcome of a failed call: "refused" if it failed for lack of capacity before it was accepted."""
    detail = read_metadata_message(error.trailing_metadata(), ERROR_METADATA_KEY, wire.Error) or wire.Error()
    reason = wire.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_").lower().replace("_", " ")
    if accepted or error.code() not in _CAPACITY:
        end: End = _AFTER.get(detail.reason, "failed") if accepted else "failed"
        return OfferOutcome(offer, end, now - start, reason)
    stated_wait = detail.retry_after_ms / 1000 if detail.HasField("retry_after_ms") else None
    behind = asked - start - offer.at
    return OfferOutcome(offer, "refused", now - start, reason, stated_wait, now - asked, asked=asked, behind=behind)


def _usage(event: Any) -> wire.Usage | None:
    kind = event.WhichOneof("event")
    if kind == "receipt":
        return event.receipt.usage  # type: ignore[no-any-return]
    return event.usage if kind == "usage" else None


def _text(offer: Offer) -> str:
    """Return a prompt of the offer's length, in which each byte is a token. It starts with the offer's number."""
    return f"{offer.number:08d}".ljust(offer.prompt_tokens, ".")[-offer.prompt_tokens :]


LiveSite = tuple[str, str | None]  # the addresses of a replica and of the router in front of it


@contextmanager
def live_site(setup: ReplicaSetup, *, routed: bool) -> Iterator[LiveSite]:
    with NamedTemporaryFile("w", suffix=".json") as cost:
        cost.write(cost_model_to_json(setup.cost, {"from": "octet bench admission"}))
        cost.flush()
        options = [
            *("--engine", "sim", "--cost-model", cost.name, "--context", str(setup.context)),
            *("--kv-blocks", str(setup.num_blocks), "--block-size", str(setup.block_size)),
            *("--max-running", str(setup.max_running), "--max-waiting", str(setup.max_waiting)),
        ]
        with replica_and_router(LANE.specialist, options, routed=routed) as (replica, router):
            yield replica.address, router.address if routed else None


_PATIENT = 600.0
_MIDDLE = (0.2, 0.8)  # the replica counts as full between these shares of a crowd's answers
_BREATH = 1.0  # seconds to pause between two loads


def play_live(plan: Plan, *, routed: bool) -> tuple[float, list[Run]]:
    """Run the plan in real time. Return the capacity and the runs."""
    with record_slow_periods() as slow_periods, live_site(plan.setup, routed=routed) as site:
        capacity, runs = uvloop.run(_play(plan, *site))
    return capacity, [replace(run, slow_periods=slow_periods) for run in runs]


async def _play(plan: Plan, address: str, router: str | None) -> tuple[float, list[Run]]:
    async with aio.insecure_channel(address) as replica, _door(address, router) as stream:
        capacity = await _capacity(plan, stream)
        runs = []
        for seed in plan.seeds:
            for load in plan.order(seed):
                outcomes = await submit_on_time(plan.offers(load, capacity, seed), stream)
                runs.append(Run(load, "octet", seed, plan.window(load), outcomes, await _errors(replica), ()))
                await asyncio.sleep(_BREATH)
    return capacity, runs


@asynccontextmanager
async def _door(replica: str, router: str | None) -> AsyncIterator[Stream]:
    """Yield a function that calls the router or, if there is none, the replica (with the client that routers use)."""
    if router is not None:
        ask, event, named = router_wire.InferRequest, router_wire.InferEvent, [LANE.specialist]
        async with aio.insecure_channel(router) as channel:
            generate = channel.unary_stream(ROUTER, ask.SerializeToString, event.FromString)
            yield lambda offer: generate(ask(prompt=_text(offer), force_specialists=named, **_limits(offer)))
        return
    line = open_transport()(ReplicaTarget("0", replica), READ_LIMITS)

    async def stream(offer: Offer) -> AsyncIterator[wire.GenerateEvent]:
        request = wire.GenerateRequest(request_id=offer.name, text=_text(offer), **_limits(offer))
        async for raw in line.stream(REPLICA, request.SerializeToString()):
            yield wire.GenerateEvent.FromString(raw)

    try:
        yield stream
    finally:
        await line.close()


async def submit_on_time(asked: Iterable[Offer], stream: Stream) -> list[OfferOutcome]:
    start = monotonic()
    calls = []
    for offer in asked:
        await asyncio.sleep(max(0.0, start + offer.at - monotonic()))
        calls.append(asyncio.ensure_future(call(stream, offer, start)))
    return list(await asyncio.gather(*calls))


async def _capacity(plan: Plan, stream: Stream) -> float:
    """Return the capacity: the seconds of lone work (time on an idle replica) done per second by a full replica."""
    setup = plan.setup
    work = plan.seconds * 2
    asked = offers(plan.source, plan.mix, setup.cost, 1.0, work, seed=-1)[: setup.max_running + setup.max_waiting]
    crowd = [replace(offer, at=0.0, priority=0, patience=_PATIENT) for offer in asked]
    done = sorted(await submit_on_time(crowd, stream), key=lambda outcome: outcome.at)
    return rate_between(done, *_MIDDLE)


def rate_between(done: Sequence[OfferOutcome], low: float, high: float) -> float:
    first, last = (round(share * (len(done) - 1)) for share in (low, high))
    work = sum(outcome.offer.work for outcome in done[first + 1 : last + 1])
    return work / (done[last].at - done[first].at)


async def _errors(replica: aio.Channel) -> EstimateErrors | None:
    request, answer = wire.WatchLoadRequest, wire.LoadReport
    watch = replica.unary_stream("/octet.v1.Specialist/WatchLoad", request.SerializeToString, answer.FromString)
    reports = watch(request())
    report = await reports.read()
    reports.cancel()
    if not report.HasField("estimate_error"):
        return None
    error = report.estimate_error
    has_totals = error.HasField("total_p90")
    totals: tuple[float | None, float | None] = (error.total_p50, error.total_p90) if has_totals else (None, None)
    return EstimateErrors(error.step_p50, error.step_p90, *totals, error.num_requests)
