"""The demo model equals transformers in float32, and is close to it in 4 bits."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from specialist.engines.native.engine import Decoder, StepBatch
from specialist.models.checkpoint import LAYER_MATRICES, Checkpoint
from specialist.models.open import open_checkpoint
from specialist.models.weights import dense
from tests.later import Later
from tests.native.fused import FusedReplica, fused_decoder
from tests.native.greedy_replica import ask
from tests.native.transformers_models import _source

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

pytestmark = pytest.mark.slow

COUNT = 32
NUM_TEXTS = 12
PROMPTS = (
    "Write a C++ function that sums a vector.",
    "#include <vector>\nint sum(const std::vector<int>& v) {\n",
    "template <typename T>\nT largest(const std::vector<T>& values) {\n",
    "The capital of France is",
    "error: no matching function for call to 'std::sort(int&, int&)'",
    "cmake_minimum_required(VERSION 3.20)\nproject(",
    "Explain in one sentence what a mutex does.",
    "std::unique_ptr<Node> head = ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Once upon a time there was a compiler",
    "for (int i = 0; i < n; ++i) {\n    for (int j = 0; j < m; ++j) {\n",
    "undefined reference to `vtable for Shape'",
    "class Shape {\npublic:\n    virtual double area() const = 0;\n",
    "What is the difference between a pointer and a reference?",
    "std::map<std::string, int> counts;\nfor (const auto& word : words) ",
    "SELECT name FROM users WHERE",
    "bool is_prime(int n) {\n    if (n < 2) return false;\n",
    "Les chats sont",
    "#define MAX(a, b)",
    "std::lock_guard<std::mutex> lock(",
)


@pytest.fixture(scope="module")
def checkpoint(demo_gguf: Path) -> Checkpoint:
    return open_checkpoint(demo_gguf)


@pytest.fixture(scope="module")
def in_floats(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with its weights converted to floats."""
    weights = {name: dense(weight) for name, weight in checkpoint.weights.items()}
    return replace(checkpoint, weights=weights, revision="f" * 64)


@pytest.fixture(scope="module")
def theirs(in_floats: Checkpoint) -> Any:
    config = in_floats.config
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope.theta},
        "tie_word_embeddings": True,
    }
    make: Any = transformers.LlamaForCausalLM
    model = make(transformers.LlamaConfig(**settings)).eval()
    model.load_state_dict({_source(name): weight for name, weight in in_floats.weights.items()}, strict=False)
    return model


@pytest.fixture(scope="module")
def exact(in_floats: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return fused_decoder(in_floats, tmp_path_factory.mktemp("floats"), num_blocks=40, block_size=16, max_tokens=512)


@pytest.fixture(scope="module")
def small(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Return the decoder that is served: its weights are small integers, and its cache holds half floats."""
    folder = tmp_path_factory.mktemp("bits")
    return fused_decoder(checkpoint, folder, num_blocks=200, block_size=16, max_tokens=512, kv_dtype="float16")


def answers(decoder: Any, checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    replica = FusedReplica(decoder, max_running=20, chunk=128)
    replica.run(ask(f"r{i}", tokens_of(checkpoint, prompt), COUNT) for i, prompt in enumerate(PROMPTS))
    return [replica.answer(f"r{i}") for i in range(len(PROMPTS))]


def tokens_of(checkpoint: Checkpoint, text: str) -> tuple[int, ...]:
    return tuple(checkpoint.vocabulary.tokenizer.encode(text).ids)


@pytest.fixture(scope="module")
def right(theirs: Any, checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    """Return transformers' answers to all prompts, computed in one batch that is padded on the left."""
    prompts = [tokens_of(checkpoint, prompt) for prompt in PROMPTS]
    longest = max(map(len, prompts))
    ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = theirs.generate(
        ids, attention_mask=mask, max_new_tokens=COUNT, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return [tuple(row) for row in out[:, longest:].tolist()]


def test_the_model_is_stored_in_few_bits(checkpoint: Checkpoint) -> None:
    bits = {name: getattr(checkpoint.weights[f"layers.3.{name}"], "bits", None) for name in LAYER_MATRICES}
    assert bits == dict.fromkeys(LAYER_MATRICES, 4)


def test_greedy_answers_in_float32_equal_transformers(
    exact: Decoder, in_floats: Checkpoint, right: list[tuple[int, ...]]
) -> None:
    assert answers(exact, in_floats) == right


def test_greedy_answers_in_4_bits_are_the_same_but_for_near_ties(
    small: Decoder, checkpoint: Checkpoint, right: list[tuple[int, ...]]
) -> None:
    same = sum(one == other for one, other in zip(answers(small, checkpoint), right, strict=True))
    assert same >= len(PROMPTS) - 2, f"{same} of {len(PROMPTS)} answers unchanged"


def test_perplexity_in_4_bits_is_that_of_the_same_weights_in_floats(
    exact: Decoder, small: Decoder, checkpoint: Checkpoint, shared_data: Path
) -> None:
    texts = list(solutions(shared_data / "humaneval-x" / "humaneval_cpp.jsonl.gz"))[:NUM_TEXTS]
    losses = [sum(loss(decoder, tokens_of(checkpoint, text)) for text in texts) for decoder in (exact, small)]
    num_predicted = sum(len(tokens_of(checkpoint, text)) - 1 for text in texts)
    exact_perplexity, small_perplexity = (torch.tensor(total / num_predicted).exp().item() for total in losses)
    assert small_perplexity < 1.002 * exact_perplexity


def solutions(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt") as lines:
        for line in lines:
            task = json.loads(line)
            yield task["declaration"] + task["canonical_solution"]


def loss(decoder: Decoder, tokens: tuple[int, ...]) -> float:
    """Return the summed loss in nats over all tokens but the first. The text is one sequence that starts at block 1."""
    count = len(tokens)

    def int32(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    batch = StepBatch(
        tokens=int32(tokens),
        positions=int32(range(count)),
        slots=int32(range(decoder.block_size, decoder.block_size + count)),
        query_start=int32([0, count]),
        context_lens=int32([count]),
        block_tables=int32([list(range(1, 2 + count // decoder.block_size))]),
        outputs=int32(range(count - 1)),
    )
    logits = decoder.forward(batch, ())
    return torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="sum").item()
