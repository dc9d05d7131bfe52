"""Tokens may wait so that several cross to the event loop and to the caller together. None is lost or overtaken, and
none waits longer than the gap; a first token and the end of an answer do not wait at all."""

import asyncio
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulation.event_loop import HeapLoop
from specialist.scheduling.step import Emitted
from specialist.server.engine_thread import EngineReport
from specialist.server.outbox import Outbox
from specialist.server.output_stream import OutputStream, widen_gap
from specialist.server.served_request import Enqueued, RequestUpdate, RequestUsage

GAP = 0.01
MARGIN = 1e-9  # rounding of sums of simulated seconds
USAGE = RequestUsage("length", None, 1, 1, 0, "", 0, 0.0, 0.0, 0.0, 0.0)
steps = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0004, 0.0014, 0.004, 0.009, 0.01, 0.011, 0.03]), st.sets(st.integers(0, 2))),
    max_size=60,
)
"""Steps: the time since the step before, and which of three answers get a token."""


class Received(NamedTuple):
    at: float
    updates: list[RequestUpdate]


class Run(NamedTuple):
    put: list[list[tuple[float, RequestUpdate]]]  # for each answer, its updates and when the engine reported them
    received: list[list[Received]]
    num_woken: int


async def relay(stream: OutputStream, received: list[Received]) -> None:
    while not received or received[-1].updates[-1] is not USAGE:
        received.append(Received(0.0, await stream.take()))
        received[-1] = Received(asyncio.get_running_loop().time(), received[-1].updates)


async def pass_on(taken: list[tuple[float, set[int]]], gap: float) -> Run:
    """Report the steps as the engine's thread does, and read each stream at once."""
    loop = asyncio.get_running_loop()
    num_woken = 0

    def deliver(*reports: EngineReport) -> None:
        for served, update in chain.from_iterable(report.updates for report in reports):
            served.stream.put(update)

    def wake(pull: Any) -> None:
        nonlocal num_woken
        num_woken += 1
        loop.call_soon(pull)

    outbox = Outbox(deliver, wake)
    streams = [OutputStream(10_000, lambda: None, gap, outbox.pull) for _ in range(3)]
    served: list[Any] = [SimpleNamespace(stream=stream) for stream in streams]
    run = Run([[], [], []], [[], [], []], 0)
    relays = [asyncio.ensure_future(relay(*each)) for each in zip(streams, run.received, strict=True)]

    def report(updates: list[tuple[int, RequestUpdate]], *, is_urgent: bool) -> None:
        for index, update in updates:
            run.put[index].append((loop.time(), update))
        outbox.put(EngineReport([(served[index], update) for index, update in updates], None, is_urgent=is_urgent))

    report([(index, Enqueued(0)) for index in range(3)], is_urgent=True)
    begun = set[int]()
    for number, (seconds, chosen) in enumerate(taken):
        await asyncio.sleep(seconds)
        updates: list[tuple[int, RequestUpdate]] = [(i, Emitted(f"{i}", (number,))) for i in sorted(chosen)]
        report(updates, is_urgent=not chosen <= begun)
        begun |= chosen
    report([(index, USAGE) for index in range(3)], is_urgent=True)
    await asyncio.gather(*relays)
    return run._replace(num_woken=num_woken)


def simulate(taken: list[tuple[float, set[int]]], gap: float = GAP) -> Run:
    loop = HeapLoop()
    try:
        run: Run = loop.run_until_complete(pass_on(taken, gap))
    finally:
        loop.close()
    assert not loop.errors
    return run


def times_of_tokens(received: list[Received]) -> list[tuple[int, float]]:
    return [
        (token, at)
        for at, updates in received
        for update in updates
        if isinstance(update, Emitted)
        for token in update.tokens
    ]


@given(steps)
@example([(0.0014, {0, 1, 2})] * 40)
@example([(0.0, {0}), (0.001, {0}), (0.03, {1}), (0.0, {0})])
def test_tokens_arrive_in_order_and_within_the_gap(taken: list[tuple[float, set[int]]]) -> None:
    run = simulate(taken)
    for put, received in zip(run.put, run.received, strict=True):
        sent = [(update.tokens[0], at) for at, update in put if isinstance(update, Emitted)]
        got = times_of_tokens(received)
        assert [token for token, _ in got] == [token for token, _ in sent], "each token once, in order"
        assert all(0 <= at - since <= GAP + MARGIN for (_, at), (_, since) in zip(got, sent, strict=True))
        assert not sent or got[0][1] == sent[0][1], "the first token must not wait"
        assert received[-1].at == put[-1][0], "the end of an answer must not wait"
        updates = [update for each in received for update in each.updates]
        assert isinstance(updates[0], Enqueued) and updates[-1] is USAGE
        assert all(isinstance(update, Emitted) for update in updates[1:-1])


@given(steps)
def test_messages_with_tokens_are_a_gap_apart(taken: list[tuple[float, set[int]]]) -> None:
    """Only the end of an answer comes sooner, with the tokens before it."""
    for received in simulate(taken).received:
        at = [each.at for each in received[:-1] if any(isinstance(update, Emitted) for update in each.updates)]
        assert all(later - earlier >= GAP - MARGIN for earlier, later in pairwise(at))


@given(st.sets(st.integers(0, 2), min_size=1), st.floats(GAP + 1e-6, 1.0), st.integers(1, 20))
def test_tokens_of_a_slow_engine_never_wait(chosen: set[int], seconds: float, num_steps: int) -> None:
    run = simulate([(seconds, chosen)] * num_steps)
    for index in chosen:
        sent = [at for at, update in run.put[index] if isinstance(update, Emitted)]
        assert [at for _, at in times_of_tokens(run.received[index])] == sent


@given(steps)
def test_without_a_gap_no_token_waits(taken: list[tuple[float, set[int]]]) -> None:
    run = simulate(taken, gap=0.0)
    for put, received in zip(run.put, run.received, strict=True):
        sent = [at for at, update in put if isinstance(update, Emitted)]
        assert [at for _, at in times_of_tokens(received)] == sent


def test_fast_steps_do_not_wake_the_event_loop() -> None:
    """The loop is woken for what may not wait, and perhaps for one step in each gap, but not for each step."""
    run = simulate([(0.001, {0, 1, 2})] * 100)
    assert run.num_woken <= 3 + 100 * 0.001 / GAP


def test_a_caller_that_does_not_read_does_not_wake_the_event_loop() -> None:
    async def report() -> int:
        woken = list[Any]()

        def deliver(report: EngineReport) -> None:
            for each, update in report.updates:
                each.stream.put(update)

        outbox = Outbox(deliver, woken.append)
        served: Any = SimpleNamespace(stream=OutputStream(10_000, lambda: None, GAP, outbox.pull))
        for number in range(100):
            outbox.put(EngineReport([(served, Emitted("r", (number,)))], None, is_urgent=False))
            outbox.pull()
        return len(woken)

    loop = HeapLoop()
    try:
        assert loop.run_until_complete(report()) == 1
    finally:
        loop.close()


@pytest.mark.parametrize(("num_running", "times"), [(0, 1.0), (16, 1.0), (24, 1.5), (64, 4.0), (1000, 4.0)])
def test_gap_grows_with_the_running_requests(num_running: int, times: float) -> None:
    assert widen_gap(GAP, num_running) == pytest.approx(times * GAP)
