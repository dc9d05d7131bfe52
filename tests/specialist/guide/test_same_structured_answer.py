"""A structured answer depends only on its request: not on cache, chunks, pool size, other requests or speculation."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from octet.identity import Lane
from specialist.engines.sim.engine import SimModel
from specialist.engines.sim.vocabulary import NUM_SAMPLED, sim_vocabulary
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Preempted
from specialist.text.prompt import Structure
from specialist.text.structured_output import GrammarCache, Guide
from tests.laws.oracle import ModelProposer, OracleProposer
from tests.laws.replica import Replica, Shape
from tests.laws.scenario import BARE
from tests.laws.small_model import small_model

VOCABULARY = sim_vocabulary()
GRAMMARS = GrammarCache(VOCABULARY, VOCABULARY.tokenizer.get_vocab_size())
STRUCTURES = (
    None,
    Structure("regex", "[ab]{1,9}"),
    Structure("choice", choices=("yes", "yes sir", "no")),
    Structure("json_schema", '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'),
)
MODEL = SimModel(NUM_SAMPLED)

shapes = st.builds(
    Shape,
    num_blocks=st.sampled_from([12, 20, 64]),
    block_size=st.sampled_from([4, 5]),
    prefix_cache=st.booleans(),
    chunk_tokens=st.sampled_from([1, 3, 64]),
    max_running=st.integers(1, 6),
    age_bound=st.integers(1, 5),
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Callable[[], Request]]:
    """Draw a list of functions. Every call of a function returns the same request, with a new guide."""
    return [_request(draw, f"r{i}") for i in range(draw(st.integers(2, 6)))]


def _request(draw: st.DrawFn, name: str) -> Callable[[], Request]:
    structure = draw(st.sampled_from(STRUCTURES))
    plain = Request(
        name,
        Lane(BARE.specialist, BARE.revision),
        draw(st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)),
        max_tokens=draw(st.integers(1, 20)),
        priority=draw(st.integers(0, 2)),
        stop_ids=VOCABULARY.eos_ids,
        seed=draw(st.integers(0, 3)),
        draft_window=draw(st.sampled_from([0, 3])),
    )
    return lambda: replace(plain, guide=None if structure is None else Guide(GRAMMARS.compile(structure)))


@settings(max_examples=150)
@given(workloads(), shapes, st.sampled_from(["none", "oracle", "model"]))
def test_same_answer_for_every_configuration_of_a_replica(
    workload: list[Callable[[], Request]], shape: Shape, drafts: str
) -> None:
    right = {request.request_id: MODEL.answer(request) for request in (make() for make in workload)}
    proposer = OracleProposer(Random(0), MODEL)
    for make in workload:
        proposer.learn(make(), right[make().request_id])
    replica = Replica(shape, proposer=proposer if drafts == "oracle" else None, model=MODEL)
    if drafts == "model":
        small = small_model(MODEL, replica.clock, num_blocks=12, block_size=shape.block_size)
        replica.propose(ModelProposer(None, small))
    assert replica.run([make() for make in workload]) == right
    assert replica.pool.num_free == replica.pool.capacity


def test_preempted_request_keeps_its_structure() -> None:
    """The test covers both cases: the preempted request finds its blocks in the cache, or computes them again."""
    for prefix_cache in (True, False):
        replica = Replica(Shape(num_blocks=9, block_size=4, prefix_cache=prefix_cache, chunk_tokens=64), model=MODEL)
        form = GRAMMARS.compile(Structure("regex", "[a-f]{30}"))
        low = Request("low", BARE, (1, 2, 3), max_tokens=26, guide=Guide(form))
        high = Request("high", BARE, (4, 5, 6), max_tokens=26, priority=1, guide=Guide(form))
        assert replica.run([low, high]) == {"low": MODEL.answer(low), "high": MODEL.answer(high)}
        assert any(isinstance(event, Preempted) and event.request_id == "low" for event in replica.events)
