"""An answer depends only on its request: not on cache, chunks, pool size, other requests, batch or speculation."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from octet.identity import Lane
from specialist.engines.sim.engine import SimModel
from specialist.scheduling.copied_text import LaneTexts
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Admitted, Preempted
from tests.laws.oracle import EagerProposer, ModelProposer, OracleProposer
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import ADAPTERS, BARE, STOP
from tests.laws.small_model import small_model

stems = st.sampled_from([(5, 6, 7, 8, 9, 10, 11, 12, 13), (5, 6, 7, 8), (3,), ()])
tails = st.lists(st.integers(1, 96), min_size=1, max_size=6).map(tuple)
shapes = st.builds(
    Shape,
    num_blocks=st.sampled_from([9, 12, 20, 64]),
    block_size=st.sampled_from([4, 5, 8]),
    prefix_cache=st.booleans(),
    chunk_tokens=st.sampled_from([1, 3, 7, 64]),
    max_running=st.integers(1, 6),
    age_bound=st.integers(1, 5),
    hybrid=st.just(False),
    host_blocks=st.sampled_from([0, 1, 4, 40]),
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    size = draw(st.integers(2, 8))
    return [
        Request(
            f"r{i}",
            Lane(BARE.specialist, BARE.revision, draw(st.sampled_from(ADAPTERS))),
            draw(stems) + draw(tails),
            max_tokens=draw(st.integers(1, 10)),
            priority=draw(st.integers(0, 2)),
            stop_ids=STOP,
            seed=draw(st.integers(0, 1)),
            draft_window=draw(st.sampled_from([0, 3])),
        )
        for i in range(size)
    ]


def oracle_for(requests: list[Request], model: SimModel) -> OracleProposer:
    proposer = OracleProposer(Random(0), model)
    for request in requests:
        proposer.learn(request, model.answer(request))
    return proposer


@settings(max_examples=150)
@given(workloads(), shapes, st.booleans(), st.sampled_from(["none", "oracle", "lane", "model"]))
def test_same_answer_for_every_configuration_of_a_replica(
    requests: list[Request], shape: Shape, hybrid: bool, drafts: str
) -> None:
    shape = Shape(**{name: getattr(shape, name) for name in Shape.__slots__} | {"hybrid": hybrid})
    model = SimModel(hybrid=hybrid)
    replica = Replica(shape, proposer=EagerProposer(LaneTexts()) if drafts == "lane" else None)
    match drafts:
        case "oracle":
            replica.propose(oracle_for(requests, model))
        case "model":
            replica.propose(
                ModelProposer(None, small_model(model, replica.clock, num_blocks=12, block_size=shape.block_size))
            )
    assert replica.run(requests) == {request.request_id: model.answer(request) for request in requests}
    assert replica.pool.num_free == replica.pool.capacity


@settings(max_examples=50)
@given(workloads(), shapes)
def test_same_answer_alone_and_in_a_batch(requests: list[Request], shape: Shape) -> None:
    together = Replica(shape).run(requests)
    for request in requests:
        assert Replica(shape).run([request]) == {request.request_id: together[request.request_id]}


def test_a_second_conversation_turn_reuses_the_first() -> None:
    """The first turn, including its answer, is a prefix of the second and comes from the cache."""
    replica = Replica(Shape(block_size=4))
    first = Request("first", BARE, tuple(range(1, 14)), max_tokens=11, stop_ids=STOP)
    answer = replica.run([first])["first"]
    second = Request("second", BARE, (*first.prompt, *answer, 42), max_tokens=3, stop_ids=STOP)
    replica.run([second])
    admitted = [event for event in replica.events if isinstance(event, Admitted)]
    assert admitted[-1].num_hit_tokens == (len(first.prompt) + len(answer) - 1) // 4 * 4


def test_a_preempted_hybrid_goes_on_where_it_stopped() -> None:
    """The preempted request gets back its recurrent state, its partial block and its key chain, so no token is computed
    twice."""
    replica = Replica(Shape(num_blocks=9, block_size=4, hybrid=True, chunk_tokens=64))
    low = Request("low", BARE, tuple(range(1, 11)), max_tokens=12, priority=0)
    other = Request("other", BARE, (50, 51, 52), max_tokens=12, priority=1)
    replica.scheduler.submit(low)
    replica.scheduler.submit(other)
    for _ in range(3):
        replica.loop.run_once()
    computed = replica.scheduler.ledger.live["low"].num_computed
    high = Request("high", BARE, tuple(range(60, 73)), max_tokens=1, priority=2)
    replica.run([high])
    assert any(isinstance(event, Preempted) and event.request_id == "low" for event in replica.events)
    resumed = [event for event in replica.events if isinstance(event, Admitted) and event.request_id == "low"][1]
    assert computed % 4 != 0
    assert resumed.num_hit_tokens == computed
    assert replica.answers()["low"] == replica.model.answer(low)
