"""Adapters in a GPU's memory: pages are shared by no two stacks, and the least recently used stacks give way."""

import pytest
import torch

from specialist.adapters.adapter import Adapter, LowRank, content_digest, matrix_shapes
from tests.native.device import DEVICE
from tests.native.transformers_models import model_config, random_model

pytest.importorskip("triton")

from specialist.engines.native.gpu_adapters import DOWN, QKV, GpuAdapters

CONFIG = model_config(random_model("llama").config)


def adapter(seed: int, rank: int, *names: str) -> Adapter:
    torch.manual_seed(seed)
    shapes = {name: shape for name, shape in matrix_shapes(CONFIG).items() if name.split(".")[2] in names}
    targets = {name: LowRank(torch.randn(rank, k), torch.randn(n, rank), 0.5) for name, (n, k) in shapes.items()}
    return Adapter(content_digest(targets), targets, rank)


def make(most_pages: int = 16) -> GpuAdapters:
    return GpuAdapters(CONFIG, most_pages, DEVICE, torch.float32)


def test_pages_hold_the_ranks_of_a_stack_padded_with_zeros() -> None:
    memory, one, other = make(), adapter(1, 5, "v"), adapter(2, 20, "q", "v", "down")
    placed = memory.place([(one, other), (), (one,)])
    assert placed is not None and placed.counts == (2, 0, 1)
    first = placed.firsts[0]
    pages = list(placed.pages[first : first + 2])
    heads, kv = CONFIG.q_size, CONFIG.kv_size
    for layer in range(CONFIG.num_layers):
        a, b = torch.cat(tuple(memory.a[QKV][layer, pages]), 1), torch.cat(tuple(memory.b[QKV][layer, pages]), 1)
        low, its = other.targets[f"layers.{layer}.v"], one.targets[f"layers.{layer}.v"]
        assert torch.equal(a[2, :25].cpu(), torch.cat((its.a, low.a)))
        assert torch.equal(b[heads + kv :, :25].cpu(), 0.5 * torch.cat((its.b, low.b), 1))
        assert not a[2, 25:].any() and not b[:, 25:].any() and not a[1].any() and not a[0, :5].any()
    assert sorted(memory.a) == [QKV, DOWN], "memory only for matrices that an adapter changes"
    assert memory.place([(), ()]) is None


def test_stacks_used_last_stay_and_a_step_gets_what_it_needs() -> None:
    memory = make(most_pages=16)
    first = memory.place([(adapter(0, 40, "q"),)])
    for seed in range(1, 9):
        memory.place([(adapter(0, 40, "q"),), (adapter(seed, 40, "q"),)])
    assert memory.num_pages == 16
    kept = memory.a[QKV].clone()
    assert memory.place([(adapter(0, 40, "q"),)]) == first and torch.equal(kept, memory.a[QKV])
    many = [(adapter(seed, 64, "q"),) for seed in range(20, 26)]
    placed = memory.place(many)
    assert placed is not None and memory.num_pages == 32 and len(set(placed.pages)) == 24
    again = memory.place([many[3]])
    assert again is not None and again.pages == placed.pages[placed.firsts[3] : placed.firsts[3] + 4]
    memory.place([(adapter(0, 40, "q"),), many[3]])
    assert torch.equal(memory.a[QKV][:, list(again.pages)].cpu()[0, 0, 0], many[3][0].targets["layers.0.q"].a[:16])


def test_without_memory_for_more_pages_unused_stacks_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make(most_pages=64)
    memory.place([(adapter(0, 256, "q"),)])

    def fails(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch.Tensor, "new_zeros", fails)
    placed = memory.place([(adapter(1, 256, "q"),)])
    assert placed is not None and len(placed.pages) == memory.num_pages == 16
    with pytest.raises(torch.OutOfMemoryError):
        memory.place([(adapter(1, 256, "q"),), (adapter(2, 16, "q"),)])
    assert memory.place([(adapter(1, 256, "q"),)]) == placed
