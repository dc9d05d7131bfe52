"""The same loads in real time: a replica behind a socket, and callers that do not wait for each other."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

import uvloop
from grpc import aio

from bench.admission.live_calls import Stream, call, to_replica, to_router
from bench.admission.live_site import LiveSite
from bench.admission.mix import offers
from bench.admission.offer import Offer
from bench.admission.outcome import Outcome
from bench.admission.run import Errors, Plan, Run
from octet.v1 import specialist_pb2 as wire
from router.replicas.address import Target
from router.replicas.channel import connect

_PATIENT = 600.0
_MIDDLE = (0.2, 0.8)
"""Shares of a crowd's answers between which its replica counts as full."""
_BREATH = 1.0
"""Seconds between two loads."""


def play_live(plan: Plan, site: LiveSite) -> tuple[float, list[Run]]:
    """The capacity, and a run for each load and seed."""
    return uvloop.run(_play(plan, site))


async def _play(plan: Plan, site: LiveSite) -> tuple[float, list[Run]]:
    async with aio.insecure_channel(site.replica) as replica, _door(site) as stream:
        capacity = await _capacity(plan, stream)
        runs = []
        for seed in plan.seeds:
            for load in plan.order(seed):
                outcomes = await knock(plan.offers(load, capacity, seed), stream)
                runs.append(Run(load, "octet", seed, plan.window(load), outcomes, await _errors(replica), ()))
                await asyncio.sleep(_BREATH)
    return capacity, runs


@asynccontextmanager
async def _door(site: LiveSite) -> AsyncIterator[Stream]:
    """Callers ask the router; a replica is asked by the router's own client, as it is in an ensemble."""
    if site.router is not None:
        async with aio.insecure_channel(site.router) as channel:
            yield to_router(channel)
        return
    line = connect(Target("0", site.replica), None)
    try:
        yield to_replica(line)
    finally:
        await line.close()


async def knock(asked: Iterable[Offer], stream: Stream) -> list[Outcome]:
    """Each call begins on time, whether or not others have ended."""
    start = monotonic()
    calls = []
    for offer in asked:
        await asyncio.sleep(max(0.0, start + offer.at - monotonic()))
        calls.append(asyncio.ensure_future(call(stream, offer, start)))
    return list(await asyncio.gather(*calls))


async def _capacity(plan: Plan, stream: Stream) -> float:
    """Seconds of lone work done in a second: as many as may wait and run, all there at once and none in a hurry."""
    plant = plan.plant
    work = plan.seconds * 2
    asked = offers(plan.source, plan.mix, plant.cost, 1.0, work, seed=-1)[: plant.max_running + plant.max_waiting]
    crowd = [replace(offer, at=0.0, priority=0, patience=_PATIENT) for offer in asked]
    done = sorted(await knock(crowd, stream), key=lambda outcome: outcome.at)
    return rate_between(done, *_MIDDLE)


def rate_between(done: Sequence[Outcome], low: float, high: float) -> float:
    """Work a second of those who were answered between these shares of the answers."""
    first, last = (round(share * (len(done) - 1)) for share in (low, high))
    work = sum(outcome.offer.work for outcome in done[first + 1 : last + 1])
    return work / (done[last].at - done[first].at)


async def _errors(replica: aio.Channel) -> Errors | None:
    watch = replica.unary_stream(
        "/octet.v1.Specialist/WatchLoad",
        request_serializer=wire.WatchLoadRequest.SerializeToString,
        response_deserializer=wire.LoadReport.FromString,
    )
    reports = watch(wire.WatchLoadRequest())
    report = await reports.read()
    reports.cancel()
    if not report.HasField("estimate_error"):
        return None
    error = report.estimate_error
    total = (error.total_p50, error.total_p90) if error.HasField("total_p90") else (None, None)
    return Errors(error.step_p50, error.step_p90, *total)
