"""On a GPU, models with recurrent layers compute what transformers computes, and answer the same whatever the batch,
the chunks, the cache, preemption or drafts."""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from specialist.engines.native import host_blocks
from specialist.engines.native.gpu_memory import why_unsupported
from specialist.engines.native.recurrent_state import StateCopy
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.models.open import open_checkpoint
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Preempted
from tests.models.tiny_hybrids import HYBRIDS, save_hybrid
from tests.native.device import DEVICE
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.hybrid_cases import PROMPTS, VARIANTS, SometimesRight, tokens

pytest.importorskip("triton")
if DEVICE.type != "cuda":
    pytest.skip("needs a GPU", allow_module_level=True)

from specialist.engines.native.gpu_hybrid import GpuHybridDecoder

torch.backends.cudnn.allow_tf32 = False  # convolutions of transformers
WIDER: dict[str, dict[str, Any]] = {"lfm2": {"hidden_size": 192}}
"""Changes to tiny models whose heads no kernel takes: those of norms need 32 elements."""


@lru_cache(len(HYBRIDS))
def saved(family: str) -> tuple[Any, Checkpoint, "TemporaryDirectory[str]"]:
    folder = TemporaryDirectory()
    model = save_hybrid(Path(folder.name) / "model", family, seed=3, strength=0.8, **WIDER.get(family, {}))
    return model.to(DEVICE), open_checkpoint(Path(folder.name) / "model"), folder


@lru_cache(3)
def decoder(family: str, dtype: torch.dtype, block_size: int) -> GpuHybridDecoder:
    return GpuHybridDecoder(
        saved(family)[1], num_blocks=150, block_size=block_size, device=DEVICE, dtype=dtype, buckets=(4, 64)
    )


def replica_of(family: str, dtype: torch.dtype, *, block_size: int = 8, **changes: Any) -> GreedyReplica:
    return GreedyReplica(decoder(family, dtype, block_size), **changes)


@torch.no_grad()
def logits_of(model: Any, text: tuple[int, ...]) -> Tensor:
    logits: Tensor = model(torch.tensor([text], device=DEVICE), use_cache=False).logits[0].float()
    return logits


@pytest.mark.parametrize("kind", ["triton", "torch"])
@pytest.mark.parametrize("family", HYBRIDS)
def test_greedy_tokens_and_logits_equal_those_of_transformers_in_float32(family: str, kind: str) -> None:
    model, checkpoint, _ = saved(family)
    made: TorchDecoder = decoder(family, torch.float32, 8)
    if kind == "torch":
        made = TorchDecoder(checkpoint, num_blocks=150, block_size=8, device=DEVICE)
    replica = GreedyReplica(made, chunk=100)
    replica.run(ask(f"r{i}", prompt, 128) for i, prompt in enumerate(PROMPTS[:3]))
    for i, prompt in enumerate(PROMPTS[:3]):
        answer = replica.answer(f"r{i}")
        expected = logits_of(model, prompt + answer[:-1])[len(prompt) - 1 :]
        torch.testing.assert_close(replica.logits(f"r{i}"), expected, atol=1e-4, rtol=0)
        assert len(answer) == 128 and expected.argmax(-1).tolist() == list(answer)
        assert len(set(answer)) > 10, "the answer proves little"


@pytest.mark.parametrize("number", range(len(VARIANTS)), ids=[f"{name} {i}" for i, (name, _) in enumerate(VARIANTS)])
def test_every_option_of_a_family_is_computed_or_refused(number: int, tmp_path: Path) -> None:
    family, changes = VARIANTS[number]
    model = save_hybrid(tmp_path / "model", family, seed=3, strength=0.8, **changes).to(DEVICE)
    checkpoint = open_checkpoint(tmp_path / "model")
    sizes: dict[str, Any] = {"num_blocks": 60, "block_size": 8, "device": DEVICE, "dtype": torch.float32}
    if why := why_unsupported(checkpoint.config, torch.float32):
        with pytest.raises(ValueError, match=re.escape(why)):
            GpuHybridDecoder(checkpoint, **sizes)
        return
    made = GpuHybridDecoder(checkpoint, **sizes, buckets=(16,))
    replica = GreedyReplica(made, chunk=17)
    replica.run([ask("r", tokens(30, 1), 12)])
    expected = logits_of(model, tokens(30, 1) + replica.answer("r")[:-1])[29:]
    torch.testing.assert_close(replica.logits("r"), expected, atol=1e-4, rtol=0)


@lru_cache(len(HYBRIDS))
def alone(family: str, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], Tensor], ...]:
    """Return each prompt's answer and logits when it runs alone and its prompt is computed in one step."""
    found = []
    for prompt in PROMPTS:
        replica = replica_of(family, dtype, chunk=128, max_running=1, prefix_cache=False)
        replica.run([ask("r", prompt, 40)])
        found.append((replica.answer("r"), replica.logits("r")))
    assert len({answer for answer, _ in found}) == len(PROMPTS)
    return tuple(found)


def asked(turn: int, count: int, window: int = 0) -> list[Request]:
    """Return requests for the prompts, with priorities, so that some preempt others."""
    return [
        replace(ask(f"{turn} {n}", PROMPTS[n % len(PROMPTS)], 40), priority=n % 3, draft_window=window)
        for n in range(count)
    ]


def preempted(replica: GreedyReplica) -> set[str]:
    return {each.request_id for each in replica.events if isinstance(each, Preempted)}


@pytest.mark.parametrize(
    ("num_blocks", "chunk", "max_running", "prefix_cache", "snapshot_bytes"),
    [(150, 128, 6, False, 0), (150, 5, 6, True, 1 << 20), (150, 1, 3, True, 1 << 20), (21, 33, 6, True, 1 << 20),
     (21, 16, 4, False, 0)],
    ids=["together", "small chunks", "single tokens", "preempted and saved", "preempted"],
)  # fmt: skip
@pytest.mark.parametrize("family", HYBRIDS)
def test_the_same_bits_whatever_runs_beside_and_before(
    family: str, num_blocks: int, chunk: int, max_running: int, prefix_cache: bool, snapshot_bytes: int
) -> None:
    expected = alone(family, torch.bfloat16)
    replica = replica_of(
        family, torch.bfloat16, chunk=chunk, max_running=max_running, prefix_cache=prefix_cache,
        snapshot_bytes=snapshot_bytes, num_blocks=num_blocks,
    )  # fmt: skip
    for turn in range(2):  # the second time with what the first left in the cache
        requests = asked(turn, 7)
        replica.run(requests)
        for n, each in enumerate(requests):
            answer, logits = expected[n % len(PROMPTS)]
            assert replica.answer(each.request_id) == answer
            if each.request_id not in preempted(replica):
                assert torch.equal(replica.logits(each.request_id), logits)
    assert not prefix_cache or any(replica.num_hit_tokens(f"1 {n}") for n in range(7))
    assert num_blocks == 150 or preempted(replica), "nothing was preempted"


@pytest.mark.parametrize("num_blocks", [150, 30], ids=["in one run", "preempting"])
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("family", HYBRIDS)
def test_drafts_are_accepted_and_change_nothing(family: str, window: int, num_blocks: int) -> None:
    expected = alone(family, torch.bfloat16)
    proposer = SometimesRight([prompt + expected[i][0] for i, prompt in enumerate(PROMPTS)], window)
    replica = replica_of(family, torch.bfloat16, proposer=proposer, chunk=33, num_blocks=num_blocks)
    requests = asked(0, len(PROMPTS), window)
    replica.run(requests)
    assert [replica.answer(each.request_id) for each in requests] == [answer for answer, _ in expected]
    assert max(len(event.tokens) for event in replica.events if isinstance(event, Emitted)) > 1


@pytest.mark.parametrize("family", ["bamba", "mamba2", "lfm2"])
def test_a_preempted_sequence_resumes_from_pinned_memory(family: str) -> None:
    replica = replica_of(family, torch.bfloat16, chunk=64, max_running=2)
    low = [ask(f"low {i}", tokens(60, i), 30) for i in range(2)]
    for each in low:
        replica.scheduler.submit(each)
    for _ in range(12):
        replica.loop.run_once()
    kept: list[StateCopy] = []

    def look() -> None:
        kept.extend(
            s.saved for s in replica.scheduler.waiting if isinstance(s.saved, StateCopy) and s.saved not in kept
        )

    replica.run([replace(ask("high", tokens(30, 7), 5), priority=5)], look)
    assert preempted(replica) and kept and all(each.state.is_pinned() for each in kept)
    for i, each in enumerate(low):
        undisturbed = replica_of(family, torch.bfloat16, chunk=64)
        undisturbed.run([each])
        assert replica.answer(f"low {i}") == undisturbed.answer(f"low {i}")


def test_nothing_of_a_neighbour_or_an_old_sequence_is_read() -> None:
    expected = alone("bamba", torch.bfloat16)[2][1]
    replica = replica_of("bamba", torch.bfloat16)
    replica.run([ask("r", PROMPTS[2], 40)], each_step=replica.poison)
    made = decoder("bamba", torch.bfloat16, 8)
    for cache in made.kv_memory():
        cache.zero_()
    assert torch.equal(replica.logits("r"), expected)


def test_memory_that_cannot_be_pinned_is_refused_and_the_gpu_goes_on() -> None:
    memory = torch.empty(1 << 14, dtype=torch.uint8)
    host_blocks._pin(memory, DEVICE)
    with pytest.raises(MemoryError, match="cannot pin"):
        host_blocks._pin(memory, DEVICE)
    assert torch.arange(4, device=DEVICE).add(1).sum().item() == 10
    host_blocks._unpin(memory, DEVICE)
