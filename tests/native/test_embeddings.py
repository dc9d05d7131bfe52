"""An embedding is the normalised mean of the final hidden states that transformers computes, with the same bits in any
batch, whatever the chunks, the cache and preemptions."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpool import BlockPool
from octet.clock import ManualClock
from octet.identity import Lane
from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.native.engine import Decoder, NativeEngine
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Admitted, Event, Finished, FixedBudget, Preempted
from specialist.server.served_request import PromptEmbedding
from tests.native.fused import fused_decoder
from tests.native.transformers_models import SMALL, checkpoint_of, model_config, random_model

LANE = Lane("tiny", "0" * 64)
SIZE = SMALL["hidden_size"]


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model("llama", seed=1)


@pytest.fixture(scope="module", params=["torch", "fused"])
def new_decoder(request: pytest.FixtureRequest, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    checkpoint = checkpoint_of(model)
    if request.param == "torch":
        return partial(TorchDecoder, checkpoint, block_size=16)
    folder: Path = tmp_path_factory.mktemp("packed")
    return partial(fused_decoder, checkpoint, folder, block_size=16)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = Random(seed)
    return tuple(rng.randrange(SMALL["vocab_size"]) for _ in range(length))


def expected(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        states = model.model(torch.tensor([prompt])).last_hidden_state[0].double()
    mean = states.mean(0)
    unit: torch.Tensor = mean / mean.norm()
    return unit


class EmbeddingReplica:
    def __init__(self, decoder: Decoder, model: Any, chunk: int) -> None:
        store = AdapterStore(model_config(model.config), 1)
        engine = NativeEngine(decoder, store, DeviceSlots(1, decoder.device, torch.float32))
        self.pool = BlockPool(decoder.num_blocks, decoder.block_size)
        config = SchedulerConfig(LANE, max_running=8, max_step_tokens=chunk)
        self.scheduler = Scheduler(self.pool, config, ManualClock(), budget=FixedBudget(chunk))
        self.loop = StepLoop(self.scheduler, engine)
        self.events: list[Event] = []

    def submit(self, request: Request) -> None:
        self.scheduler.submit(request)

    def embed(self, request_id: str, prompt: Sequence[int], priority: int = 0) -> PromptEmbedding:
        found = PromptEmbedding(SIZE)
        self.submit(Request(request_id, LANE, tuple(prompt), 1, priority, hidden_sum=found))
        return found

    def run(self, most_steps: int | None = None) -> None:
        while most_steps != 0 and self.loop.run_once() is not None:
            most_steps = None if most_steps is None else most_steps - 1
        self.pool.check()
        self.events += self.scheduler.take_events()
        errors = [event for event in self.events if isinstance(event, Finished) and event.reason == "error"]
        assert not errors, errors


NewDecoder = Callable[..., Decoder]


def embed_alone(new_decoder: NewDecoder, model: Any, prompt: Sequence[int]) -> list[float]:
    replica = EmbeddingReplica(new_decoder(num_blocks=40), model, chunk=512)
    found = replica.embed("alone", prompt)
    replica.run()
    return found.normalized()


def assert_same(found: PromptEmbedding, alone: list[float], new_decoder: NewDecoder) -> None:
    """The C++ decoder computes the same bits in any batch; torch's matrix product depends on its number of rows."""
    is_exact = isinstance(new_decoder, partial) and new_decoder.func is fused_decoder
    assert found.normalized() == (alone if is_exact else pytest.approx(alone, abs=1e-5))


@pytest.mark.parametrize("length", [1, 17, 90])
def test_an_embedding_equals_that_of_transformers(new_decoder: NewDecoder, model: Any, length: int) -> None:
    prompt = prompt_of(length)
    found = torch.tensor(embed_alone(new_decoder, model, prompt), dtype=torch.float64)
    torch.testing.assert_close(found, expected(model, prompt), atol=1e-4, rtol=0)
    assert float(found.norm()) == pytest.approx(1.0, abs=1e-9)


@settings(max_examples=max(10, settings().max_examples // 4))
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    chunk=st.integers(1, 40),
    cached=st.booleans(),
    answers=st.integers(0, 2),
)
def test_an_embedding_does_not_depend_on_chunks_cache_or_neighbours(
    new_decoder: NewDecoder, model: Any, lengths: list[int], chunk: int, cached: bool, answers: int
) -> None:
    prompts = [prompt_of(length, seed=7) for length in lengths]  # all have the same beginning
    replica = EmbeddingReplica(new_decoder(num_blocks=60), model, chunk)
    if cached:
        replica.submit(Request("first", LANE, prompt_of(90, seed=7), 2))
        replica.run()
    for index in range(answers):
        replica.submit(Request(f"answer{index}", LANE, prompt_of(30, seed=index), 12))
    found = [replica.embed(f"r{index}", prompt) for index, prompt in enumerate(prompts)]
    replica.run()
    for prompt, embedding in zip(prompts, found, strict=True):
        assert_same(embedding, embed_alone(new_decoder, model, prompt), new_decoder)


def test_an_embedding_is_computed_again_after_a_preemption(new_decoder: NewDecoder, model: Any) -> None:
    replica = EmbeddingReplica(new_decoder(num_blocks=8), model, chunk=16)
    replica.submit(Request("other", LANE, prompt_of(8, seed=3), 12, priority=9))
    found = replica.embed("low", prompt_of(75))
    replica.run(most_steps=4)
    replica.submit(Request("high", LANE, prompt_of(70, seed=2), 4, priority=9))
    replica.run()
    assert any(isinstance(event, Preempted) and event.request_id == "low" for event in replica.events)
    hits = [event.num_hit_tokens for event in replica.events if isinstance(event, Admitted)]
    assert hits == [0, 0, 0, 0], "an embedding must not use cached blocks, which have no hidden states"
    assert_same(found, embed_alone(new_decoder, model, prompt_of(75)), new_decoder)


def test_a_missing_chunk_is_an_error() -> None:
    embedding = PromptEmbedding(4)
    embedding.begin(0, 8)
    with pytest.raises(ValueError, match="starts at token 16, but 8 tokens were added"):
        embedding.begin(16, 24)
