"""The C++ decoder computes what transformers computes, with the same bits in any batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from specialist.adapters.store import AdapterStore
from specialist.engines.native.create import KernelChoice, SharedParts, create_native
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.engines.native.settings import NativeSettings
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import LAYER_MATRICES, Checkpoint
from specialist.models.weights import dense
from specialist.ops.cpu.packed_weights import open_packed, pack_checkpoint
from specialist.scheduling.step import Emitted, Preempted
from tests.adapters.peft_files import random_tensors, write
from tests.native.fused import FusedReplica, cache_views, fused_decoder, kernels
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.test_torch_decoder import MODELS, PartlyWrongProposer, expected_answers, prompts
from tests.native.transformers_models import checkpoint_of, model_config, random_model
from tests.ops.quantize import quantize

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def quantize_checkpoint(model: Any, bits: Literal[4, 8] = 4) -> Checkpoint:
    """Return a checkpoint with the embedding and every v matrix in 8 bits, as in real files, and the other matrices in
    `bits`."""
    exact = checkpoint_of(model)
    stored = {
        name: quantize(dense(weight), 8 if name.endswith((".v", "embed")) else bits)
        if name.rpartition(".")[2] in (*LAYER_MATRICES, "embed", "head")
        else weight
        for name, weight in exact.weights.items()
    }
    return replace(exact, weights=stored, revision=f"{bits}" * 64)


def logits_of(replica: GreedyReplica, count: int) -> list[Tensor]:
    return [replica.logits(f"r{i}") for i in range(count)]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_and_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model, answers = expected_answers(name)
    replica = FusedReplica(fused_decoder(checkpoint_of(model), tmp_path, block_size=16), chunk=24)
    replica.run(ask(f"r{i}", prompt, 128) for i, prompt in enumerate(prompts(3)))
    for i, (tokens, logits) in enumerate(answers):
        torch.testing.assert_close(replica.logits(f"r{i}"), logits, atol=1e-4, rtol=0)
        assert replica.answer(f"r{i}") == tokens


@pytest.fixture(
    scope="module",
    params=["float32", pytest.param("4 bits", marks=pytest.mark.slow), "8 bits", "4 bits, half cache"],
)
def decoders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = random_model("llama", seed=1, **SIZES)
    bits: Literal[4, 8] = 8 if "8" in request.param else 4
    checkpoint = checkpoint_of(model) if request.param == "float32" else quantize_checkpoint(model, bits)
    kv_dtype = "float16" if "half" in request.param else "float32"
    folder = tmp_path_factory.mktemp("packed")

    def make(**changes: Any) -> FusedDecoder:
        return fused_decoder(checkpoint, folder, kv_dtype=kv_dtype, **changes)

    return make


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "chunk", "max_running", "threads"),
    [(120, 8, 5, 8, 2), (60, 16, 128, 8, 1), (520, 1, 33, 3, 2), (16, 32, 7, 8, 3), (21, 8, 16, 8, 2)],
    ids=["small chunks", "all at once", "a token a block", "large blocks", "preempting"],
)
def test_every_logit_is_bit_equal_in_any_batch(
    num_blocks: int, block_size: int, chunk: int, max_running: int, threads: int, decoders: Any
) -> None:
    alone = []
    for prompt in prompts(5):
        replica = FusedReplica(decoders(threads=1), chunk=128, max_running=1)
        replica.run([ask("r", prompt, 30)])
        alone.append(replica.logits("r"))
    decoder = decoders(num_blocks=num_blocks, block_size=block_size, threads=threads)
    replica = FusedReplica(decoder, chunk=chunk, max_running=max_running)
    replica.run(ask(f"r{i}", prompt, 30) for i, prompt in enumerate(prompts(5)))
    assert any(isinstance(event, Preempted) for event in replica.events) == (num_blocks == 21)
    assert all(torch.equal(one, other) for one, other in zip(logits_of(replica, 5), alone, strict=True))


def test_verifying_drafts_changes_no_answer(decoders: Any) -> None:
    plain = FusedReplica(decoders())
    plain.run(ask(f"r{i}", prompt, 30) for i, prompt in enumerate(prompts(5)))
    right = {f"r{i}": plain.answer(f"r{i}") for i in range(5)}
    whole = [prompt + right[f"r{i}"] for i, prompt in enumerate(prompts(5))]
    replica = FusedReplica(decoders(), proposer=PartlyWrongProposer(whole))
    replica.run(replace(ask(f"r{i}", prompt, 30), draft_window=1 + i) for i, prompt in enumerate(prompts(5)))
    assert {f"r{i}": replica.answer(f"r{i}") for i in range(5)} == right
    emitted = [event.tokens for event in replica.events if isinstance(event, Emitted)]
    assert max(map(len, emitted)) > 1, "no draft was accepted"


def test_freed_blocks_poisoned_with_nan_change_nothing(decoders: Any) -> None:
    clean, poisoned = (FusedReplica(decoders(), prefix_cache=False) for _ in range(2))
    poisoned.poison()
    clean.run(ask(f"r{i}", prompt, 30) for i, prompt in enumerate(prompts(5)))
    poisoned.run((ask(f"r{i}", prompt, 30) for i, prompt in enumerate(prompts(5))), poisoned.poison)
    pairs = zip(logits_of(clean, 5), logits_of(poisoned, 5), strict=True)
    assert all(bool(one.isfinite().all()) and torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("bits", [4, 8])
def test_small_integers_compute_nearly_as_the_floats_they_stand_for(bits: Literal[4, 8], tmp_path: Path) -> None:
    """Both decoders use the same quantised weights, so all error comes from the 12-bit activations."""
    checkpoint = quantize_checkpoint(random_model("llama", strength=1.0, **SIZES), bits)
    oracle = GreedyReplica(TorchDecoder(checkpoint, num_blocks=40, block_size=8))
    replica = FusedReplica(fused_decoder(checkpoint, tmp_path))
    for each in (oracle, replica):
        each.run([ask("r", prompts(3)[2], 1)])
    error = (replica.logits("r") - oracle.logits("r")).norm() / oracle.logits("r").norm()
    assert float(error) < 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_adapters_compute_as_the_reference_does(family: str, tmp_path: Path) -> None:
    model = random_model(family, **({"head_dim": 16} if family == "qwen3" else {}))
    checkpoint = checkpoint_of(model)
    config = model_config(model.config)
    store = AdapterStore(config, max_adapters=2)
    modules = [f"{name}_proj" for name in LAYER_MATRICES]
    for seed, rank in ((1, 4), (2, 17)):
        tensors = random_tensors(LAYER_MATRICES, rank=rank, seed=seed, model=config)
        weak = {name: tensor * 0.2 for name, tensor in tensors.items()}
        directory = write(tmp_path / f"{seed}", weak, r=rank, lora_alpha=1, target_modules=modules)
        store.load(f"a{seed}", directory)
    stacks = [(), (store.resolve("a1"),), (store.resolve("a2"), store.resolve("a1"))]
    oracle = GreedyReplica(TorchDecoder(checkpoint, num_blocks=120, block_size=8), adapter=store.get)
    replica = FusedReplica(fused_decoder(checkpoint, tmp_path), adapter=store.get)
    for each in (oracle, replica):
        each.run(ask(f"r{i}", prompts(3)[i], 16, stack) for i, stack in enumerate(stacks))
    for i in range(3):
        torch.testing.assert_close(replica.logits(f"r{i}"), oracle.logits(f"r{i}"), atol=2e-4, rtol=0)


def test_adapters_over_4_bits_compute_nearly_as_over_the_floats_they_stand_for(tmp_path: Path) -> None:
    model = random_model("llama", strength=1.0, **SIZES)
    checkpoint = quantize_checkpoint(model)
    store = AdapterStore(checkpoint.config, max_adapters=2)
    tensors = random_tensors(LAYER_MATRICES, rank=4, seed=1, model=checkpoint.config)
    weak = {name: tensor * 0.2 for name, tensor in tensors.items()}
    modules = [f"{name}_proj" for name in LAYER_MATRICES]
    stack = (store.load("a", write(tmp_path / "a", weak, r=4, lora_alpha=1, target_modules=modules)),)
    oracle = GreedyReplica(TorchDecoder(checkpoint, num_blocks=40, block_size=8), adapter=store.get)
    replica = FusedReplica(fused_decoder(checkpoint, tmp_path), adapter=store.get)
    for each in (oracle, replica):
        each.run([ask("r", prompts(3)[2], 1, stack), ask("bare", prompts(3)[2], 1)])
    distance = (oracle.logits("r") - oracle.logits("bare")).norm()
    assert float((replica.logits("r") - oracle.logits("r")).norm()) < 0.02 * float(distance)


def test_weights_packed_for_another_model_are_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(random_model("llama", **SIZES))
    prepared = pack_checkpoint(checkpoint, tmp_path)
    other = replace(checkpoint.config, intermediate_size=128)
    with pytest.raises(ValueError, match=r"gate\+up is packed as 192 rows x 64"):
        FusedDecoder(other, prepared, kernels(), num_blocks=4, block_size=8, max_tokens=8, threads=1)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_copy_of_the_packed_weights_is_made_anew(damage: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(random_model("llama", **SIZES))
    whole = pack_checkpoint(checkpoint, tmp_path).matrices["layers.1.o"][0].data.copy()
    (file,) = (tmp_path / "weights").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= damage == "flip"
    file.unlink()  # A process that has mapped the file keeps its content.
    file.write_bytes(bytes({"cut": content[:-9], "flip": content, "empty": b""}[damage]))
    assert open_packed(file) is None
    assert (pack_checkpoint(checkpoint, tmp_path).matrices["layers.1.o"][0].data == whole).all()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_token_that_breaks_its_row_breaks_no_other(tmp_path: Path) -> None:
    model = random_model("llama", **SIZES)
    checkpoint = quantize_checkpoint(model)
    broken = dense(checkpoint.weights["embed"]).clone()
    broken[7] = torch.nan
    poisoned = replace(checkpoint, weights={**checkpoint.weights, "embed": broken}, revision="f" * 64)
    decoder = fused_decoder(poisoned, tmp_path)
    alone = decoder.forward(_batch([[1, 2, 3]]), ()).clone()
    both = decoder.forward(_batch([[1, 7, 3], [1, 2, 3]]), ())
    assert bool(both[0].isnan().all())
    assert torch.equal(both[1], alone[0])


def _batch(rows: list[list[int]]) -> StepBatch:
    """Return a batch in which each row has its own block of 8 slots. Logits are computed only for a row's last
    token."""

    def int32(values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    lengths = [len(row) for row in rows]
    starts = [sum(lengths[:i]) for i in range(len(rows) + 1)]
    return StepBatch(
        tokens=int32([token for row in rows for token in row]),
        positions=int32([position for row in rows for position in range(len(row))]),
        slots=int32([8 * (1 + i) + position for i, row in enumerate(rows) for position in range(len(row))]),
        query_start=int32(starts),
        context_lens=int32(lengths),
        block_tables=int32([[1 + i] for i in range(len(rows))]),
        outputs=int32([stop - 1 for stop in starts[1:]]),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [1, 131, 3]}, r"token must be in \[0, 131\), got 1 to 131"),
        ({"tokens": [1, -1, 3]}, "token"),
        ({"positions": [0, 1, 512]}, r"position must be in \[0, 512\), got 0 to 512"),
        ({"block_tables": [[120]]}, r"block must be in \[0, 120\), got 120 to 120"),
        ({"tokens": [1] * 257}, "the step has 257 tokens; the limit is 256"),
    ],
)
def test_what_memory_does_not_hold_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    decoder = fused_decoder(checkpoint_of(random_model("llama", **SIZES)), tmp_path)
    tensors: dict[str, Any] = {name: torch.tensor(values, dtype=torch.int32) for name, values in changes.items()}
    with pytest.raises(ValueError, match=message):
        decoder.forward(replace(_batch([[1, 2, 3]]), **tensors), ())


def test_slots_are_zeroed_and_no_others(decoders: Any) -> None:
    decoder = decoders(num_blocks=4, block_size=4)
    config = decoder.config
    keys, values = cache_views(decoder)
    keys[:], values[:] = 1.0, 1.0
    decoder.zero([0, 7, 15])
    by_slot = (
        keys.reshape(config.num_layers, 4, -1, 4).transpose(0, 1, 3, 2).reshape(config.num_layers, 16, -1),
        values.reshape(config.num_layers, 4, config.num_kv_heads, 4, -1)
        .transpose(0, 1, 3, 2, 4)
        .reshape(config.num_layers, 16, -1),
    )
    for cache in by_slot:
        assert not cache[:, [0, 7, 15]].any()
        assert (cache[:, [slot for slot in range(16) if slot not in (0, 7, 15)]] == 1).all()


def test_decoder_reports_time_by_kind_of_work(decoders: Any) -> None:
    decoder = decoders()
    assert set(decoder.seconds().values()) == {0.0}
    decoder.forward(_batch([[1, 2, 3]]), ())
    once = decoder.seconds()
    decoder.linear_only(3, 1)
    assert min(once.values()) > 0
    assert {work for work, spent in decoder.seconds().items() if spent > once[work]} == {"linear"}


def test_an_adapter_that_is_unloaded_leaves_no_packed_copy(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(random_model("llama", **SIZES))
    settings = NativeSettings(tmp_path / "cache", num_blocks=40, block_size=8, kernel="fused", threads=1)
    shared = SharedParts(kernels(), KernelChoice("fused", ""), pack_checkpoint(checkpoint, settings.cache))
    native = create_native(checkpoint, settings, shared=shared)
    tensors = random_tensors(LAYER_MATRICES, model=checkpoint.config)
    modules = [f"{name}_proj" for name in LAYER_MATRICES]
    stack = (native.engine.adapters.load("a", write(tmp_path / "a", tensors, target_modules=modules)),)
    decoder = native.engine.decoder
    assert isinstance(decoder, FusedDecoder)
    FusedReplica(decoder, adapter=native.engine.adapters.get).run([ask("r", prompts(3)[0], 1, stack)])
    assert decoder.adapters.nbytes > 0
    native.engine.adapters.unload("a")
    assert decoder.adapters.nbytes == 0
