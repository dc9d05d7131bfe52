"""The decoder computes what Hugging Face transformers computes, for any batch, chunk size and neighbouring requests."""

from collections.abc import Mapping
from collections.abc import Sequence as ListLike
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import LAYER_MATRICES, Checkpoint
from specialist.models.weights import dense
from specialist.ops.cpu.linear import DynQuant, Int4Pack, mixed
from specialist.ops.reference.layers import Dense, MakeLinear
from specialist.scheduling.sequence import Sequence
from specialist.scheduling.step import Emitted, Preempted
from tests.native.device import DEVICE
from tests.native.fused import FusedReplica, fused_decoder
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.transformers_models import SMALL, checkpoint_of, greedy, greedy_if, random_model
from tests.ops.quantize import quantize

LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}

# The seeds give varied answers without near ties.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"seed": 1}),
    "llama tied": ("llama", {"seed": 4, "tie_word_embeddings": True}),
    "llama biased": ("llama", {"seed": 5, "attention_bias": True, "mlp_bias": True}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama no groups, sdpa": ("llama", {"num_key_value_heads": 6, "attn_implementation": "sdpa"}),
    "llama linear": ("llama", {"rope_parameters": LINEAR}),
    "llama dynamic": ("llama", {"seed": 1, "rope_parameters": DYNAMIC}),
    "llama llama3": ("llama", {"seed": 5, "rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"seed": 2, "rope_parameters": YARN}),
    "mistral": ("mistral", {"seed": 1, "sliding_window": None}),
    "mistral window": ("mistral", {"seed": 2, "sliding_window": 24}),
    "mistral wide heads, yarn": ("mistral", {"head_dim": 32, "rope_parameters": YARN}),
    "qwen2": ("qwen2", {"seed": 1}),
    "qwen2 tied, yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2 windows above": ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied, biased, yarn": (
        "qwen3",
        {
            "seed": 3,
            "strength": 3.0,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "rope_parameters": YARN,
        },
    ),
}


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return prompts of 1 to 90 tokens, some of which share a prefix."""
    rng = Random(seed)
    stem = tuple(rng.randrange(SMALL["vocab_size"]) for _ in range(40))
    lengths = [1, 7, 90, 33, 50][:count]
    return [
        (stem[: (i % 2) * length] + tuple(rng.randrange(SMALL["vocab_size"]) for _ in range(length)))[:length]
        for i, length in enumerate(lengths)
    ]


def decoder_of(model: Any, **changes: Any) -> TorchDecoder:
    return TorchDecoder(checkpoint_of(model), **{"num_blocks": 120, "block_size": 8, "device": DEVICE, **changes})


@lru_cache(len(MODELS))
def expected_answers(name: str) -> tuple[Any, list[tuple[tuple[int, ...], Tensor]]]:
    """Return a model, and transformers' answers to three prompts. They are computed once for all decoders, from guesses
    of the fastest one."""
    family, changes = MODELS[name]
    model = random_model(family, **changes)
    with TemporaryDirectory() as folder:
        guesses = (
            FusedReplica(fused_decoder(checkpoint_of(model), Path(folder)), chunk=128)
            if DEVICE.type == "cpu"
            else GreedyReplica(decoder_of(model), chunk=128)
        )
    guesses.run(ask(f"r{i}", prompt, 128) for i, prompt in enumerate(prompts(3)))
    answers = [guesses.answer(f"r{i}") for i in range(3)]
    assert list(map(len, answers)) == [128] * 3
    return model, [greedy_if(model, prompt, answer) for prompt, answer in zip(prompts(3), answers, strict=True)]


AT_ANY_TIME = ("llama", "llama yarn", "mistral window", "qwen2", "qwen3")
"""Models that every test run checks with this decoder; the slow tests check the others. The fused decoder, which serves
on CPUs, is always tested with all models."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AT_ANY_TIME else pytest.mark.slow) for name in MODELS]
)
def test_greedy_tokens_and_logits_equal_those_of_transformers(name: str) -> None:
    model, answers = expected_answers(name)
    replica = GreedyReplica(decoder_of(model))
    replica.run(ask(f"r{i}", prompt, 128) for i, prompt in enumerate(prompts(3)[1:]))
    for i, (tokens, logits) in enumerate(answers[1:]):
        best, second = logits.topk(2).values.unbind(-1)
        assert len(set(tokens)) > 10 and (best - second).min() > 1e-3, "the answer is too short to prove much"
        torch.testing.assert_close(replica.logits(f"r{i}"), logits, atol=1e-4, rtol=0)
        assert replica.answer(f"r{i}") == tokens


@lru_cache(1)
def any_model() -> Any:
    return random_model("llama", seed=1)


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    """Return each prompt's answer when the prompt runs alone and is computed in one step."""
    answers = []
    for prompt in prompts(5):
        replica = GreedyReplica(decoder_of(any_model()), chunk=128, max_running=1)
        replica.run([ask("r", prompt, 40)])
        answers.append(replica.answer("r"))
    return answers


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "chunk", "max_running"),
    [(120, 8, 5, 8), (60, 16, 128, 8), (520, 1, 33, 3), (21, 8, 16, 8)],
    ids=["small chunks", "all at once", "a token a block", "preempting"],
)
def test_an_answer_is_the_same_in_any_batch(
    num_blocks: int, block_size: int, chunk: int, max_running: int, alone: list[tuple[int, ...]]
) -> None:
    decoder = decoder_of(any_model(), num_blocks=num_blocks, block_size=block_size)
    replica = GreedyReplica(decoder, chunk=chunk, max_running=max_running)
    replica.run(ask(f"r{i}", prompt, 40) for i, prompt in enumerate(prompts(5)))
    assert [replica.answer(f"r{i}") for i in range(5)] == alone
    assert any(isinstance(event, Preempted) for event in replica.events) == (num_blocks == 21)
    replica.run(ask(f"again {i}", prompt, 40) for i, prompt in enumerate(prompts(5)))
    assert [replica.answer(f"again {i}") for i in range(5)] == alone


class PartlyWrongProposer:
    """Proposes the next tokens of known answers, with every third token wrong."""

    def __init__(self, texts: list[tuple[int, ...]]) -> None:
        self.texts = texts

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Sequence) -> None: ...

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: self._guess(seq, limit) for seq, limit in limits.items()}

    def _guess(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        tokens = seq.chain.view()
        known = len(tokens)
        text = next(text for text in self.texts if text[:known] == tuple(tokens))
        coming = enumerate(text[known : known + limit], known)
        return tuple(token if i % 3 else (token + 1) % SMALL["vocab_size"] for i, token in coming)


def test_verifying_drafts_changes_no_answer(alone: list[tuple[int, ...]]) -> None:
    proposer = PartlyWrongProposer([prompt + answer for prompt, answer in zip(prompts(5), alone, strict=True)])
    replica = GreedyReplica(decoder_of(any_model()), proposer=proposer)
    requests = [replace(ask(f"r{i}", prompt, 40), draft_window=1 + i) for i, prompt in enumerate(prompts(5))]
    replica.run(requests)
    assert [replica.answer(f"r{i}") for i in range(5)] == alone
    emitted = [event.tokens for event in replica.events if isinstance(event, Emitted)]
    assert max(map(len, emitted)) > 1, "no draft was accepted"


@pytest.mark.parametrize("slots", [[0, 7, 15], [9, 10, 11, 3, 4], list(range(0, 16, 2)), []])
def test_slots_are_zeroed_and_no_others(slots: list[int]) -> None:
    decoder = decoder_of(any_model(), num_blocks=4, block_size=4)
    for cache in (decoder.k_cache, decoder.v_cache):
        cache.fill_(1.0)
    decoder.zero(slots)
    for cache in (decoder.k_cache, decoder.v_cache):
        flat = cache.view(len(cache), 16, -1)
        assert not flat[:, slots].any()
        assert bool((flat[:, [i for i in range(16) if i not in slots]] == 1).all())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # Warns on an Arm CPU without bfloat16 instructions.
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_bfloat16_stays_close_to_transformers_in_bfloat16(family: str) -> None:
    model = random_model(family, strength=1.0).bfloat16()
    replica = GreedyReplica(decoder_of(model, dtype=torch.bfloat16))
    prompt = prompts(3)[2]
    replica.run([ask("r", prompt, 1)])
    exact = random_model(family, strength=1.0)
    _, expected = greedy(exact, prompt, 1)
    _, theirs = greedy(model, prompt, 1)
    ours = (replica.logits("r") - expected).norm() / expected.norm()
    assert float(ours) < 2 * float((theirs - expected).norm() / expected.norm())


def quantize_checkpoint(checkpoint: Checkpoint, bits: Literal[4, 8]) -> Checkpoint:
    """Return a checkpoint of mixed widths, as in real files. Every o matrix is in floats. The embedding and every v
    matrix are in 8 bits if `bits` is 4, and in 4 bits if it is 8. All other matrices are in `bits`."""
    widths: dict[str, Literal[4, 8]] = {"v": 12 - bits, "embed": 12 - bits}  # type: ignore[dict-item]
    weights = dict(checkpoint.weights)
    for name, weight in checkpoint.weights.items():
        part = name.rpartition(".")[2]
        if part in (*LAYER_MATRICES, "embed", "head") and part != "o":
            weights[name] = quantize(dense(weight), widths.get(part, bits))
    return replace(checkpoint, weights=weights)


@pytest.mark.parametrize("bits", [4, 8])
def test_small_integers_compute_as_the_floats_they_stand_for(bits: Literal[4, 8]) -> None:
    model = random_model("llama", hidden_size=64, intermediate_size=96, num_attention_heads=4, vocab_size=144)
    small = quantize_checkpoint(checkpoint_of(model), bits)
    floats = replace(small, weights={name: dense(weight) for name, weight in small.weights.items()})

    def logits(checkpoint: Checkpoint, linear: MakeLinear, device: torch.device = DEVICE) -> Tensor:
        decoder = TorchDecoder(checkpoint, num_blocks=40, block_size=8, device=device, linear=linear)
        replica = GreedyReplica(decoder)
        replica.run([ask("r", prompts(3)[2], 1)])
        return replica.logits("r").cpu()

    expected = logits(floats, Dense)
    torch.testing.assert_close(logits(small, Dense), expected, atol=1e-4, rtol=0)
    kernels: list[tuple[MakeLinear, float]] = [(DynQuant, 0.1), (Int4Pack, 0.05)]
    for kernel, most in kernels:
        found = logits(small, mixed(kernel), torch.device("cpu"))
        assert float((found - expected).norm() / expected.norm()) < most


if DEVICE.type == "cuda":

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode")
    def test_a_step_never_waits_for_the_device() -> None:
        replica = GreedyReplica(decoder_of(any_model()))
        forward = replica.engine.decoder.forward

        def watched(batch: StepBatch, adapters: ListLike[Adapter]) -> Tensor:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return forward(batch, adapters)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        replica.engine.decoder.forward = watched  # type: ignore[method-assign]
        replica.run(ask(f"r{i}", prompt, 4) for i, prompt in enumerate(prompts(5)))
        assert all(len(replica.answer(f"r{i}")) == 4 for i in range(5))
