"""Answers with adapters equal those of transformers with peft, and adapters are never mixed up."""

import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from specialist.adapters.adapter import Adapter
from specialist.adapters.store import AdapterStore, DeviceSlots
from specialist.engines.native.torch_decoder import TorchDecoder
from tests.adapters.peft_files import random_tensors, write
from tests.native.device import DEVICE
from tests.native.fused import FusedReplica, fused_decoder
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.transformers_models import SMALL, checkpoint_of, greedy_if, model_config, random_model

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
COUNT = 32
ENGINES = ["torch", "fused"] if DEVICE.type == "cpu" else ["torch"]

pytestmark = pytest.mark.parametrize("engine", ENGINES)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = Random(seed)
    return tuple(rng.randrange(SMALL["vocab_size"]) for _ in range(length))


class Server:
    """A replica with adapters that are loaded from directories by name."""

    def __init__(self, engine: str, model: Any, folder: Path, *, prefix_cache: bool = True) -> None:
        self.store = AdapterStore(model_config(model.config), max_adapters=4)
        self.slots = DeviceSlots(2, DEVICE, torch.float32)
        checkpoint = checkpoint_of(model)
        self.replica: GreedyReplica
        if engine == "fused":
            fused = fused_decoder(checkpoint, folder / "packed", num_blocks=96, block_size=4, adapter_bytes=1)
            self.replica = FusedReplica(fused, adapter=self.adapter, prefix_cache=prefix_cache)
        else:
            decoder = TorchDecoder(checkpoint, num_blocks=96, block_size=4, device=DEVICE)
            self.replica = GreedyReplica(decoder, adapter=self.adapter, prefix_cache=prefix_cache)

    def adapter(self, digest: str) -> Adapter:
        return self.slots.get(self.store.get(digest))

    def answer(self, request_id: str, tokens: tuple[int, ...], *names: str) -> tuple[int, ...]:
        self.replica.run([ask(request_id, tokens, COUNT, tuple(self.store.resolve(name) for name in names))])
        return self.replica.answer(request_id)


def write_adapter(directory: Path, model: Any, seed: int) -> Path:
    tensors = random_tensors(("q", "k", "v"), rank=4, seed=seed, model=model_config(model.config))
    return write(directory, {name: tensor * 0.3 for name, tensor in tensors.items()}, target_modules=ALL[:3])


def saved_peft_model(base: Any, directory: Path, seed: int, **settings: Any) -> Any:
    """Return a copy of the model with a random adapter, which is saved to `directory`."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(target_modules=ALL, init_lora_weights=False, task_type="CAUSAL_LM", **settings)
    model = peft.get_peft_model(copy.deepcopy(base), config).eval()
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize(
    ("family", "changes"), [("llama", {"tie_word_embeddings": True}), ("qwen2", {}), ("qwen3", {"head_dim": 16})]
)
def test_two_adapters_in_one_load_equal_peft(engine: str, family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    base = random_model(family, **changes)
    peers = {
        "first": saved_peft_model(base, tmp_path / "first", 1, r=4, lora_alpha=2),
        "second": saved_peft_model(
            base, tmp_path / "second", 2, r=3, lora_alpha=1, use_rslora=True, rank_pattern={"q_proj": 5}
        ),
    }
    server = Server(engine, base, tmp_path)
    digests = {name: server.store.load(name, tmp_path / name) for name in peers}
    requests = [
        ask(f"{name} {length}", prompt(length), COUNT, (digest,))
        for length in (1, 33)
        for name, digest in digests.items()
    ]
    server.replica.run([*requests, ask("bare", prompt(33), COUNT)])
    for name, peer in peers.items():
        for length in (1, 33):
            said = server.replica.answer(f"{name} {length}")
            assert len(said) == COUNT
            tokens, logits = greedy_if(peer, prompt(length), said)
            torch.testing.assert_close(server.replica.logits(f"{name} {length}"), logits, atol=1e-4, rtol=0)
            assert said == tokens
    bare = server.replica.answer("bare")
    assert len(bare) == COUNT and bare == greedy_if(base, prompt(33), bare)[0]


def test_a_stack_is_the_sum_of_its_adapters(engine: str, tmp_path: Path) -> None:
    """A request with two adapters gets the same answer as with one adapter of their concatenated matrices."""
    model = random_model("llama")
    server = Server(engine, model, tmp_path)
    tensors = [random_tensors(("v", "up"), rank=2, seed=seed, model=model_config(model.config)) for seed in (1, 2)]
    both = {
        name: torch.cat((tensors[0][name], tensors[1][name]), dim=0 if "lora_A" in name else 1) for name in tensors[0]
    }
    names = ["v_proj", "up_proj"]
    for name, half in zip(("first", "second"), tensors, strict=True):
        server.store.load(name, write(tmp_path / name, half, r=2, lora_alpha=1, target_modules=names))
    server.store.load("both", write(tmp_path / "both", both, r=4, lora_alpha=2, target_modules=names))
    server.answer("stacked", prompt(20), "first", "second")
    server.answer("joined", prompt(20), "both")
    torch.testing.assert_close(server.replica.logits("stacked"), server.replica.logits("joined"), atol=1e-4, rtol=0)
    assert server.replica.answer("stacked") != server.answer("one", prompt(20), "first")


def test_two_adapters_on_one_prompt_share_no_block(engine: str, tmp_path: Path) -> None:
    model = random_model("llama")
    server = Server(engine, model, tmp_path)
    for seed, name in enumerate(("first", "second")):
        server.store.load(name, write_adapter(tmp_path / name, model, seed))
    answers = {name: server.answer(name, prompt(40), name) for name in ("first", "second")}
    assert answers["first"] != answers["second"]
    assert server.replica.num_hit_tokens("second") == 0
    assert server.answer("again", prompt(40), "first") == answers["first"]
    assert server.replica.num_hit_tokens("again") > 0


def test_a_replaced_adapter_never_serves_an_old_block(engine: str, tmp_path: Path) -> None:
    model = random_model("llama")
    server = Server(engine, model, tmp_path)
    old = server.store.load("name", write_adapter(tmp_path / "old", model, 1))
    before = server.answer("before", prompt(40), "name")
    server.store.acquire(old)
    server.store.load("name", write_adapter(tmp_path / "new", model, 2))
    after = server.answer("after", prompt(40), "name")
    assert server.replica.num_hit_tokens("after") == 0
    fresh = Server(engine, model, tmp_path)
    fresh.store.load("name", tmp_path / "new")
    assert after == fresh.answer("fresh", prompt(40), "name") != before
    server.replica.run([ask("still running", prompt(40), COUNT, (old,))])
    assert server.replica.answer("still running") == before


@pytest.mark.parametrize("count", [COUNT // 2, pytest.param(COUNT, marks=pytest.mark.slow)])
def test_freed_blocks_poisoned_with_nan_change_nothing(engine: str, count: int, tmp_path: Path) -> None:
    model = random_model("mistral", sliding_window=24)
    clean, poisoned = (
        Server(engine, model, tmp_path, prefix_cache=False),
        Server(engine, model, tmp_path, prefix_cache=False),
    )
    poisoned.replica.poison()
    stacks: list[tuple[str, ...]] = [(), ("first",), ("second",), ("second", "first")]
    for server, each_step in ((clean, lambda: None), (poisoned, poisoned.replica.poison)):
        digests = {
            name: server.store.load(name, write_adapter(tmp_path / name, model, seed))
            for seed, name in enumerate(("first", "second"))
        }
        requests = [
            ask(f"r{i}", prompt(5 + 9 * i, seed=i), count, tuple(digests[name] for name in stack))
            for i, stack in enumerate([*stacks, *stacks])
        ]
        server.replica.run(requests, each_step)
    for request_id in (f"r{i}" for i in range(8)):
        assert len(clean.replica.answer(request_id)) == count
        assert poisoned.replica.answer(request_id) == clean.replica.answer(request_id)
        assert torch.equal(poisoned.replica.logits(request_id), clean.replica.logits(request_id))
