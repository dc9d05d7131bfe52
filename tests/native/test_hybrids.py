"""Models with recurrent layers compute what transformers computes, and answer the same whatever the batch, the chunks,
the cache, preemption or drafts."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from octet.clock import ManualClock
from specialist.engines.base import Completion
from specialist.engines.native.recurrent_state import share_states, state_layout
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint, StateSpace
from specialist.models.open import open_checkpoint
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Preempted, Step
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.served_request import PromptEmbedding
from specialist.server.settings import ReplicaSettings
from tests.models.tiny_hybrids import HYBRIDS, save_hybrid
from tests.native.fused import FusedReplica, fused_decoder
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.hybrid_cases import PROMPTS, VARIANTS, SometimesRight, tokens

Kind = Literal["torch", "fused"]


@lru_cache(len(HYBRIDS))
def saved(family: str) -> tuple[Any, Checkpoint, "TemporaryDirectory[str]"]:
    """Return a model of transformers, and the same as a checkpoint, from one folder."""
    folder = TemporaryDirectory()
    path = Path(folder.name) / "model"
    return save_hybrid(path, family, seed=3, strength=0.8), open_checkpoint(path), folder


def replica_of(
    family: str, kind: Kind, *, num_blocks: int = 120, block_size: int = 8, threads: int = 1, **changes: Any
) -> GreedyReplica:
    _, checkpoint, folder = saved(family)
    sizes: dict[str, Any] = {"num_blocks": num_blocks, "block_size": block_size}
    if kind == "torch":
        return GreedyReplica(TorchDecoder(checkpoint, **sizes), **changes)
    return FusedReplica(fused_decoder(checkpoint, Path(folder.name), threads=threads, **sizes), **changes)


@torch.no_grad()
def logits_of(model: Any, text: tuple[int, ...]) -> Tensor:
    """Return transformers' logits after every token. With its cache, it would not limit the sizes of single steps."""
    logits: Tensor = model(torch.tensor([text]), use_cache=False).logits[0].float()
    return logits


@pytest.mark.parametrize("kind", ["torch", "fused"])
@pytest.mark.parametrize("family", HYBRIDS)
def test_greedy_tokens_and_logits_equal_those_of_transformers(family: str, kind: Kind) -> None:
    model, _, _ = saved(family)
    replica = replica_of(family, kind)
    replica.run(ask(f"r{i}", prompt, 128) for i, prompt in enumerate(PROMPTS[:3]))
    for i, prompt in enumerate(PROMPTS[:3]):
        answer = replica.answer(f"r{i}")
        expected = logits_of(model, prompt + answer[:-1])[len(prompt) - 1 :]
        assert len(answer) == 128 and expected.argmax(-1).tolist() == list(answer)
        best, second = expected.topk(2).values.unbind(-1)
        assert len(set(answer)) > 10 and (best - second).min() > 2e-4, "the answer proves little"
        torch.testing.assert_close(replica.logits(f"r{i}"), expected, atol=1e-4, rtol=0)


@lru_cache(len(HYBRIDS))
def alone(family: str) -> tuple[tuple[tuple[int, ...], Tensor], ...]:
    """Return each prompt's answer and logits when it runs alone and its prompt is computed in one step."""
    found = []
    for prompt in PROMPTS:
        replica = replica_of(family, "fused", chunk=128, max_running=1, prefix_cache=False)
        replica.run([ask("r", prompt, 40)])
        found.append((replica.answer("r"), replica.logits("r")))
    return tuple(found)


@settings(max_examples=60)
@given(
    family=st.sampled_from(sorted(HYBRIDS)),
    picks=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=7),
    priorities=st.lists(st.integers(0, 2), min_size=7, max_size=7),
    num_blocks=st.sampled_from([18, 21, 30, 120]),
    block_size=st.sampled_from([8, 16]),
    chunk=st.sampled_from([1, 5, 16, 33, 128]),
    max_running=st.integers(1, 6),
    prefix_cache=st.booleans(),
    window=st.sampled_from([0, 0, 1, 4]),
    snapshot_bytes=st.sampled_from([0, 40_000, 1 << 20]),
    threads=st.sampled_from([1, 1, 1, 2]),
)
def test_the_same_bits_whatever_runs_beside_and_before(
    family: str,
    picks: list[int],
    priorities: list[int],
    num_blocks: int,
    block_size: int,
    chunk: int,
    max_running: int,
    prefix_cache: bool,
    window: int,
    snapshot_bytes: int,
    threads: int,
) -> None:
    expected = alone(family)
    proposer = SometimesRight([PROMPTS[i] + expected[i][0] for i in range(len(PROMPTS))], window) if window else None
    replica = replica_of(
        family,
        "fused",
        num_blocks=num_blocks,
        block_size=block_size,
        threads=threads,
        chunk=chunk,
        max_running=max_running,
        prefix_cache=prefix_cache,
        proposer=proposer,
        snapshot_bytes=snapshot_bytes,
    )
    for turn in range(2):  # the second time with what the first left in the cache
        asked = [request(f"{turn} {n}", i, priorities[n], window) for n, i in enumerate(picks)]
        replica.run(asked, each_step=lambda: check_bound(replica, snapshot_bytes))
        for each, i in zip(asked, picks, strict=True):
            assert replica.answer(each.request_id) == expected[i][0]
            if not window and not preempted(replica, each):
                assert torch.equal(replica.logits(each.request_id), expected[i][1])
    assert replica.pool.num_free == replica.pool.capacity


def request(request_id: str, prompt: int, priority: int, window: int) -> Request:
    return replace(ask(request_id, PROMPTS[prompt], 40), priority=priority, draft_window=window)


def preempted(replica: GreedyReplica, request: Request) -> bool:
    return any(isinstance(each, Preempted) and each.request_id == request.request_id for each in replica.events)


def check_bound(replica: GreedyReplica, most: int) -> None:
    states: Any = replica.states
    held = [seq.saved for seq in replica.scheduler.waiting if seq.saved is not None]
    parts = [part for each in (*states.snapshots.values(), *held) for part in (each.state, each.tail)]
    total = sum(part.numel() * part.element_size() for part in parts if part is not None)
    assert states.num_snapshot_bytes == total <= most


@pytest.mark.parametrize("family", ["bamba", "mamba2", "lfm2"])
def test_two_prompts_share_the_state_where_they_part(family: str) -> None:
    """The first prompt leaves a state at its own end only; the second leaves one at the fork, which the third hits."""
    stem, size = tokens(64, 9), 8
    replica = replica_of(family, "fused", block_size=size)
    for name, tail in (("first", 10), ("second", 11), ("third", 12)):
        replica.run([ask(name, stem + tokens(21, tail), 4)])
    assert [replica.num_hit_tokens(name) for name in ("first", "second", "third")] == [0, 0, 64]
    replica.run([ask("again", stem + tokens(21, 11), 4)])
    assert replica.num_hit_tokens("again") == (64 + 20) // size * size
    assert replica.answer("again") == replica.answer("second")


@pytest.mark.parametrize("family", ["bamba", "mamba2", "lfm2"])
def test_a_preempted_sequence_resumes_without_computing_again(family: str) -> None:
    replica = replica_of(family, "fused", chunk=64, max_running=2)
    seen = count_tokens(replica)
    low = [ask(f"low {i}", tokens(60, i), 30) for i in range(2)]
    for each in low:
        replica.scheduler.submit(each)
    for _ in range(12):
        replica.loop.run_once()
    replica.run([replace(ask("high", tokens(30, 7), 5), priority=5)])
    assert any(preempted(replica, each) for each in low)
    assert seen[0] == 2 * (60 + 29) + 30 + 4, "every token is computed once, also those of the preempted request"
    for i, each in enumerate(low):
        undisturbed = replica_of(family, "fused", chunk=64)
        undisturbed.run([each])
        assert replica.answer(f"low {i}") == undisturbed.answer(f"low {i}")


def count_tokens(replica: GreedyReplica) -> list[int]:
    """Return a list whose only number is that of the tokens computed from now on."""
    run, seen = replica.engine.run, [0]

    def counted(step: Step) -> Iterable[Completion]:
        seen[0] += sum(len(row.tokens) for row in step.rows)
        return run(step)

    replica.engine.run = counted  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    ("family", "kind"), [*((family, "fused") for family in HYBRIDS), ("bamba", "torch"), ("lfm2", "torch")]
)
def test_drafts_are_accepted_and_change_nothing(family: str, kind: Kind) -> None:
    expected = alone(family)
    proposer = SometimesRight([prompt + expected[i][0] for i, prompt in enumerate(PROMPTS)], 6)
    replica = replica_of(family, kind, proposer=proposer)
    replica.run(request(f"r{i}", i, 0, 6) for i in range(len(PROMPTS)))
    assert [replica.answer(f"r{i}") for i in range(len(PROMPTS))] == [answer for answer, _ in expected]
    assert max(len(event.tokens) for event in replica.events if isinstance(event, Emitted)) > 1


def test_nothing_of_a_neighbour_or_an_old_sequence_is_read() -> None:
    replica = replica_of("bamba", "fused")
    replica.run([ask("r", PROMPTS[2], 40)], each_step=replica.poison)
    assert torch.equal(replica.logits("r"), alone("bamba")[2][1])


@pytest.mark.parametrize("number", range(len(VARIANTS)), ids=[f"{name} {i}" for i, (name, _) in enumerate(VARIANTS)])
def test_every_option_of_a_family_is_computed(number: int, tmp_path: Path) -> None:
    family, changes = VARIANTS[number]
    model = save_hybrid(tmp_path / "model", family, seed=3, strength=0.8, **changes)
    checkpoint = open_checkpoint(tmp_path / "model")
    replicas = (
        FusedReplica(fused_decoder(checkpoint, tmp_path), chunk=17),
        GreedyReplica(TorchDecoder(checkpoint, num_blocks=60, block_size=8), chunk=17),
    )
    for replica in replicas:
        replica.run([ask("r", tokens(30, 1), 12)])
        answer = replica.answer("r")
        expected = logits_of(model, tokens(30, 1) + answer[:-1])[29:]
        torch.testing.assert_close(replica.logits("r"), expected, atol=1e-4, rtol=0)


@given(rows=st.integers(1, 64), memory=st.integers(1, 40), heads=st.integers(1, 4))
def test_states_of_running_requests_and_copies_fit_into_their_memory(rows: int, memory: int, heads: int) -> None:
    ssm = StateSpace(num_heads=6 * heads, head_dim=16, state_size=12, num_groups=2, width=4)
    config = replace(saved("mamba2")[1].config, ssm=ssm)
    size = 4 * state_layout(config).size
    given_bytes = memory * size + 17
    if memory < 3:
        with pytest.raises(MemoryError, match=f"{3 * size:,}"):
            share_states(config, given_bytes, rows)
        return
    shares = share_states(config, given_bytes, rows)
    assert 1 <= shares.max_running <= rows and shares.saved >= size
    assert 2 * size * shares.max_running + shares.saved == given_bytes
    if shares.max_running < rows:
        assert 2 * size * (shares.max_running + 1) > given_bytes * 3 // 4


def test_a_replica_runs_as_many_requests_as_there_is_memory_for() -> None:
    checkpoint = saved("bamba")[1]
    size = 4 * state_layout(checkpoint.config).size
    settings = ReplicaSettings(num_blocks=32, block_size=8, max_running=9, state_bytes=16 * size, kernel="float32")
    replica = replica_from_checkpoint(checkpoint, "tiny", settings, ManualClock())
    states: Any = replica.scheduler.states
    assert (replica.scheduler.config.max_running, states.max_snapshot_bytes) == (6, 4 * size)


def test_sums_of_hidden_states_do_not_come_from_the_cache() -> None:
    """A repeated prompt has blocks and a state in the cache, but its hidden states must be computed."""
    folder = Path(saved("bamba")[2].name)
    decoder = fused_decoder(saved("bamba")[1], folder)
    replica = FusedReplica(decoder)
    computed = count_tokens(replica)
    for name in ("first", "again"):
        total = PromptEmbedding(decoder.config.hidden_size)
        replica.run([replace(ask(name, PROMPTS[2], 1), hidden_sum=total)])
    assert computed[0] == 2 * len(PROMPTS[2])
