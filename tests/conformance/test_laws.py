"""Laws (invariants) of the scheduler, tested with every engine."""

from dataclasses import replace
from random import Random

import pytest

from octet.clock import ManualClock
from specialist.engines.base import Engine
from specialist.scheduling.sequence import Request
from tests.conformance.runner import FailingEngine, LoneAnswers, Run, workload
from tests.conformance.shape import Factory, Shape

SHAPES = [
    Shape(),
    Shape(num_blocks=12, block_size=4, chunk_tokens=3),
    Shape(num_blocks=12, block_size=4, chunk_tokens=64, prefix_cache=False),
    Shape(num_blocks=40, block_size=5, chunk_tokens=1, max_running=3),
    Shape(num_blocks=9, block_size=8, chunk_tokens=7, max_running=2),
]


@pytest.fixture(scope="module")
def alone(engine: Factory) -> LoneAnswers:
    return LoneAnswers(engine)


def requests_for(engine: Factory, seed: int, count: int = 10) -> list[Request]:
    return workload(engine(Shape(), ManualClock()), Random(seed), count)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_answer_does_not_depend_on_batch_chunk_cache_or_neighbour(
    engine: Factory, alone: LoneAnswers, shape: Shape, seed: int
) -> None:
    requests = requests_for(engine, seed)
    run = Run(engine, shape).finish(requests)
    for request in requests:
        assert run.answers().get(request.request_id, ()) == alone.answer(request), request
    assert set(run.ends()) == {request.request_id for request in requests}


def test_same_answer_after_being_preempted(engine: Factory, alone: LoneAnswers) -> None:
    """Later requests of higher priority take the blocks of running ones. The preempted requests must still give the
    same answers."""
    requests = requests_for(engine, 11, count=16)
    run, rng = Run(engine, Shape(num_blocks=12, block_size=4)), Random(3)
    for request in sorted(requests, key=lambda request: request.priority):
        run.scheduler.submit(request)
        for _ in range(rng.randrange(3)):
            run.step()
    run.finish()
    assert run.times_preempted > 0, "no request was preempted, so the test proves nothing"
    for request in requests:
        assert run.answers().get(request.request_id, ()) == alone.answer(request)


def test_same_answer_from_the_cache(engine: Factory) -> None:
    run = Run(engine, Shape())
    request = requests_for(engine, 5, count=1)[0]
    longer = replace(request, prompt=request.prompt + tuple(range(1, 20)), max_tokens=8)
    first = run.finish([longer]).answers()[longer.request_id]
    run.events.clear()
    hits = run.scheduler.pool.counters.hits
    assert run.finish([longer]).answers()[longer.request_id] == first
    assert run.scheduler.pool.counters.hits > hits


def test_lanes_share_no_block(engine: Factory, alone: LoneAnswers) -> None:
    """The same prompt is sent with several adapter stacks in turn. Each answer must be that of its stack."""
    subject = engine(Shape(), ManualClock())
    base = requests_for(engine, 6, count=1)[0]
    run, answers = Run(engine, Shape()), set[tuple[int, ...]]()
    for i, stack in enumerate(subject.stacks):
        lane = replace(base.lane, adapters=stack)
        request = replace(base, request_id=f"s{i}", lane=lane, prompt=tuple(range(1, 30)), max_tokens=12)
        run.finish([request])
        assert run.answers().get(f"s{i}", ()) == alone.answer(request)
        answers.add(alone.answer(request))
    assert run.scheduler.pool.counters.hits == 0
    assert len(answers) == len(subject.stacks), "every adapter stack must change the answer, or the test proves nothing"


@pytest.mark.parametrize("seed", range(6))
def test_a_failing_engine_costs_only_the_requests_it_fails_on(engine: Factory, alone: LoneAnswers, seed: int) -> None:
    saboteurs: list[FailingEngine] = []

    def sabotage(real: Engine) -> Engine:
        saboteurs.append(FailingEngine(real, Random(seed)))
        return saboteurs[-1]

    requests = requests_for(engine, 20 + seed, count=12)
    run = Run(engine, Shape(num_blocks=20), wrap=sabotage).finish(requests)
    assert saboteurs[0].num_faults > 0
    ends = run.ends()
    assert set(ends) == {request.request_id for request in requests}
    for request in requests:
        said, right = run.answers().get(request.request_id, ()), alone.answer(request)
        assert said == (right if ends[request.request_id] != "error" else right[: len(said)])


@pytest.mark.parametrize("seed", range(4))
def test_ended_request_leaves_nothing_and_changes_no_other(engine: Factory, alone: LoneAnswers, seed: int) -> None:
    requests = requests_for(engine, 40 + seed, count=14)
    run, rng = Run(engine, Shape(num_blocks=16)), Random(seed)
    for request in requests:
        run.scheduler.submit(request)
        run.step()
        if rng.random() < 0.5:
            run.scheduler.end(f"r{rng.randrange(14)}", rng.choice(["cancelled", "deadline"]))
    run.finish()
    ends = run.ends()
    assert set(ends) == {request.request_id for request in requests}
    for request in requests:
        said, right = run.answers().get(request.request_id, ()), alone.answer(request)
        assert said == (right if ends[request.request_id] in ("stop", "length") else right[: len(said)])


def test_a_deadline_ends_a_request_between_two_steps(engine: Factory, alone: LoneAnswers) -> None:
    base = requests_for(engine, 8, count=1)[0]
    run = Run(engine, Shape())
    clock = run.subject.replica.clock
    endless = replace(base, max_tokens=50, stop_ids=frozenset())
    run.scheduler.submit(replace(endless, deadline=clock.now() + 1000.0))
    for _ in range(10):
        run.step()
    clock.sleep(2000.0)
    run.finish()
    assert run.ends() == {base.request_id: "deadline"}
    right = alone.answer(endless)
    said = run.answers()[base.request_id]
    assert 0 < len(said) < 50 and said == right[: len(said)]
