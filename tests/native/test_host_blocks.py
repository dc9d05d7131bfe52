"""A prefix that comes back from host memory has the bits that it had on the device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from kvpool import BlockCopy, BlockId
from specialist.engines.native import host_blocks
from specialist.engines.native.host_blocks import HostBlocks, HostCopies, host_cache
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.scheduling.step import Admitted, Preempted
from tests.native.device import DEVICE
from tests.native.fused import FusedReplica, fused_decoder
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.transformers_models import checkpoint_of, random_model

SIZE, FEW, MANY = 8, 14, 200
Make = Callable[[int, int], GreedyReplica]


def checkpoint() -> Checkpoint:
    return checkpoint_of(random_model("qwen3", seed=1))


def torch_decoder(num_blocks: int, dtype: torch.dtype = torch.float32) -> TorchDecoder:
    return TorchDecoder(checkpoint(), num_blocks=num_blocks, block_size=SIZE, device=DEVICE, dtype=dtype)


@pytest.fixture(params=["float32", "bfloat16", "fused float32", "fused float16"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return what makes a replica with so many blocks on the device and bytes on the host."""
    kind, _, kv_dtype = request.param.rpartition(" ")

    def replica(num_blocks: int, spill_bytes: int) -> GreedyReplica:
        if kind == "fused":
            fused = fused_decoder(checkpoint(), tmp_path, num_blocks=num_blocks, block_size=SIZE, kv_dtype=kv_dtype)
            return FusedReplica(fused, chunk=24, spill_bytes=spill_bytes)
        return GreedyReplica(torch_decoder(num_blocks, getattr(torch, kv_dtype)), chunk=24, spill_bytes=spill_bytes)

    return replica


def texts(count: int) -> list[list[int]]:
    rng = Random(1)
    stem = [rng.randrange(50) for _ in range(2 * SIZE)]
    return [stem + [rng.randrange(50) for _ in range(40 + 3 * i)] for i in range(count)]


def serve_twice(replica: GreedyReplica) -> list[torch.Tensor]:
    """Ask each prompt twice, one at a time. Return the logits of the last answers."""
    for turn in ("first", "again"):
        for i, text in enumerate(texts(3)):
            replica.run([ask(f"{turn}{i}", text, 3)])
    return [replica.logits(f"again{i}") for i in range(3)]


@pytest.mark.parametrize("staged", [1, 32 << 20])
def test_a_restored_prefix_has_the_same_bits(make: Make, staged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_blocks, "_MOST_STAGED", staged)
    on_device, on_host = make(MANY, 0), make(FEW, 1 << 24)
    for expected, found in zip(serve_twice(on_device), serve_twice(on_host), strict=True):
        assert torch.equal(expected, found)
    host = on_host.pool.host
    assert host is not None
    assert min(host.num_spilled, host.num_restored) > 10
    assert (on_device.pool.counters.evictions, host.num_dropped) == (0, 0)
    hits = [on_host.num_hit_tokens(f"again{i}") for i in range(3)]
    assert hits == [on_device.num_hit_tokens(f"again{i}") for i in range(3)]
    assert min(hits) >= 48


def test_a_preempted_sequence_resumes_from_the_host() -> None:
    low, high = ask("low", texts(1)[0], 12), replace(ask("high", [7] * 70, 3), priority=2)
    other = replace(ask("other", [5], 12), priority=1)  # the only running request would not be preempted
    alone = GreedyReplica(torch_decoder(MANY), chunk=24)
    alone.run([low])
    replica = GreedyReplica(torch_decoder(FEW), chunk=24, spill_bytes=1 << 24)
    replica.scheduler.submit(low)
    replica.scheduler.submit(other)
    for _ in range(6):
        replica.loop.run_once()
    replica.run([high])
    assert any(isinstance(event, Preempted) for event in replica.events)
    resumed = [event for event in replica.events if isinstance(event, Admitted) and event.request_id == "low"][1]
    assert resumed.num_hit_tokens >= 56
    assert replica.pool.host is not None
    assert replica.pool.host.num_restored > 0
    assert replica.answer("low") == alone.answer("low")


@pytest.mark.parametrize("count", [1, 5])
def test_every_byte_of_a_block_goes_out_and_comes_back(count: int) -> None:
    decoder = torch_decoder(12)
    host = HostBlocks(decoder, 7)
    kept = [cache.normal_().clone() for cache in decoder.kv_memory()]
    blocks, places = [9, 2, 11, 4, 7][:count], [3, 6, 0, 5, 1][:count]
    host.spill([BlockCopy(BlockId(block), place) for block, place in zip(blocks, places, strict=True)])
    for cache in decoder.kv_memory():
        cache.zero_()
    others = [1, 3, 5, 6, 8][:count]
    host.restore([BlockCopy(BlockId(block), place) for block, place in zip(others, places, strict=True)])
    for cache, before in zip(decoder.kv_memory(), kept, strict=True):
        assert torch.equal(cache[:, others], before[:, blocks])
        assert not cache[:, [each for each in range(12) if each not in others]].any()


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_copy_on_the_host_has_the_same_bits_and_its_memory_is_used_again(count: int) -> None:
    copies, source = HostCopies(DEVICE), torch.randn(2, count, device=DEVICE)
    for _ in range(3):
        copy = copies.copy(source)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        assert copy.device.type == "cpu" and copy.dtype == source.dtype and torch.equal(copy, source.cpu())
        source.add_(1.0)
        assert count == 0 or not torch.equal(copy, source.cpu())


def test_host_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(MemoryError, match="spill_memory: a block has"):
        host_cache(torch_decoder(2), 100)
    assert host_cache(torch_decoder(2), 0) is None


def test_a_model_with_recurrent_layers_has_no_host_tier() -> None:
    decoder: Any = type("Decoder", (), {"config": type("Config", (), {"is_recurrent": True})})
    assert host_cache(decoder, 1 << 30) is None
