"""On a GPU, the decoder equals transformers; no answer depends on batch, chunks, cache, preemption or overlap."""

import copy
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as ListLike
from dataclasses import replace
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.adapters.adapter import Adapter
from specialist.adapters.store import DeviceSlots
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import GREEDY, Request, Sampling, Sequence
from specialist.scheduling.step import Emitted, Event, Finished, FixedBudget, Preempted, Proposer
from tests.native.device import DEVICE
from tests.native.every_third import EveryThird
from tests.native.gpu_adapters import make_adapter
from tests.native.greedy_replica import BARE, GreedyReplica, ask
from tests.native.transformers_models import MODULES, checkpoint_of, greedy_if, random_model

pytest.importorskip("triton")
if DEVICE.type != "cuda":
    pytest.skip("needs a GPU", allow_module_level=True)

from specialist.engines.native.gpu_decoder import GpuDecoder
from specialist.engines.native.gpu_engine import GpuEngine
from specialist.engines.native.host_blocks import host_cache

SHAPED = Sampling(0.7, top_k=40, top_p=0.9, min_p=0.01)
PENALISED = Sampling(0.6, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, logit_bias=((5, 2.0),))
WIDE = {"hidden_size": 192, "head_dim": 32}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"seed": 1}),
    "llama biased": ("llama", {"seed": 5, "attention_bias": True, "mlp_bias": True}),
    "mistral window": ("mistral", {"seed": 2, "sliding_window": 70}),
    "qwen2": ("qwen2", {"seed": 1}),
    "qwen3 of 1024": ("qwen3", {"seed": 3, "hidden_size": 1024, "num_hidden_layers": 2}),
}
VOCAB = 131


def prompts(count: int, longest: int = 200) -> list[tuple[int, ...]]:
    """Return prompts of different lengths, some of which share a prefix."""
    rng = Random(count)
    stem = tuple(rng.randrange(VOCAB) for _ in range(longest))
    lengths = [1, 7, longest, 33, 150, 64, 65, 16, 100, 40, 3, 80][:count]
    return [
        (stem[: (i % 2) * length * 3 // 4] + tuple(rng.randrange(VOCAB) for _ in range(length)))[:length]
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("buckets", [(1, 4), (1, 64)], ids=["as prompts", "flat"])
@pytest.mark.parametrize("name", EXACT)
def test_greedy_tokens_and_logits_equal_those_of_transformers_in_float32(name: str, buckets: tuple[int, ...]) -> None:
    family, changes = EXACT[name]
    model = random_model(family, **{**WIDE, **changes})
    decoder = GpuDecoder(
        checkpoint_of(model), num_blocks=150, block_size=8, device=DEVICE, dtype=torch.float32, buckets=buckets
    )
    replica = GreedyReplica(decoder, chunk=37)
    asked = prompts(4)
    replica.run(ask(f"r{i}", prompt, 100) for i, prompt in enumerate(asked))
    for i, prompt in enumerate(asked):
        tokens, logits = greedy_if(model, prompt, replica.answer(f"r{i}"))
        torch.testing.assert_close(replica.logits(f"r{i}"), logits, atol=2e-4, rtol=0)
        assert replica.answer(f"r{i}") == tokens
        assert len(set(tokens)) > 5, "the answer is too short to prove much"


def merged(model: Any, stack: ListLike[Adapter]) -> Any:
    """Return a copy of the model whose matrices include the adapters."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, low in ((name, low) for adapter in stack for name, low in adapter.targets.items()):
            _, layer, part = name.split(".")
            weight = changed.get_parameter(f"model.layers.{layer}.{MODULES[part]}.weight")
            weight += (low.scale * low.b.double() @ low.a.double()).to(weight)
    return changed


@pytest.mark.parametrize("buckets", [(1, 8), (1, 64)], ids=["as prompts", "flat"])
@pytest.mark.parametrize(("family", "changes"), [("llama", {"attention_bias": True}), ("qwen3", {"hidden_size": 1024})])
def test_rows_with_different_adapters_equal_merged_weights_in_float32(
    family: str, changes: dict[str, Any], buckets: tuple[int, ...]
) -> None:
    model = random_model(family, **{**WIDE, "num_hidden_layers": 2, **changes})
    made = GpuDecoder(
        checkpoint_of(model), num_blocks=150, block_size=8, device=DEVICE, dtype=torch.float32, buckets=buckets
    )
    adapters = [make_adapter(made.config, seed, rank, names) for seed, rank, names in ((1, 5, "qv"), (2, 40, "qkvoud"))]
    by_digest = {each.digest: each for each in adapters}
    stacks = [(), (adapters[0],), (adapters[1],), (adapters[1], adapters[0])]
    replica = GreedyReplica(made, chunk=37, mixes_adapters=by_digest.__getitem__)
    names = [tuple(each.digest for each in stack) for stack in stacks]
    asked = prompts(4)
    replica.run(ask(f"r{i}", prompt, 60, name) for i, (prompt, name) in enumerate(zip(asked, names, strict=True)))
    for i, (prompt, stack) in enumerate(zip(asked, stacks, strict=True)):
        tokens, logits = greedy_if(merged(model, stack), prompt, replica.answer(f"r{i}"))
        torch.testing.assert_close(replica.logits(f"r{i}"), logits, atol=4e-4, rtol=0)
        assert replica.answer(f"r{i}") == tokens
    assert len({replica.answer(f"r{i}") for i in range(4)}) == 4


@lru_cache(1)
def decoder() -> GpuDecoder:
    """Return a decoder in bfloat16, whose products have every form: held, streamed and tiled, in parts and whole."""
    sizes = {"hidden_size": 1024, "intermediate_size": 5120, "num_attention_heads": 16, "num_key_value_heads": 8}
    model = random_model("qwen3", seed=1, num_hidden_layers=2, head_dim=128, vocab_size=VOCAB, **sizes).bfloat16()
    checkpoint = checkpoint_of(model)
    return GpuDecoder(
        checkpoint,
        num_blocks=400,
        block_size=16,
        device=DEVICE,
        dtype=torch.bfloat16,
        buckets=(1, 2, 8, 16, 32, 64),
        most_prompt=320,
    )


class Replica:
    def __init__(
        self,
        *,
        num_blocks: int = 400,
        chunk: int = 512,
        max_running: int = 16,
        prefix_cache: bool = True,
        proposer: Proposer | None = None,
        spill_bytes: int = 0,
    ) -> None:
        made = decoder()
        host = host_cache(made, spill_bytes)
        self.pool = BlockPool(num_blocks, made.block_size, prefix_cache=prefix_cache, host=host)
        slots = DeviceSlots(1, made.device, made.dtype)
        store: Any = SimpleNamespace(get={each.digest: each for each in adapters()}.__getitem__)
        self.engine = GpuEngine(made, store, slots)
        config = SchedulerConfig(BARE, max_running=max_running, max_step_tokens=chunk, mixes_adapters=True)
        self.scheduler = Scheduler(self.pool, config, ManualClock(), budget=FixedBudget(chunk), proposer=proposer)
        self.loop = StepLoop(self.scheduler, self.engine)
        self.events: list[Event] = []

    def run(self, requests: Iterable[Request], each_step: Callable[[], object] = lambda: None) -> list[tuple[int, ...]]:
        """Return the answers to requests that were not ended."""
        wanted = list(requests)
        for request in wanted:
            self.scheduler.submit(request)
        while self.loop.run_once() is not None:
            each_step()
        self.pool.check()
        assert not self.scheduler.ledger.live
        events = self.scheduler.take_events()
        self.events += events
        errors = [event for event in events if isinstance(event, Finished) and event.reason == "error"]
        assert not errors
        said: dict[str, tuple[int, ...]] = {request.request_id: () for request in wanted}
        for event in events:
            if isinstance(event, Emitted) and event.request_id in said:
                said[event.request_id] += event.tokens
        return list(said.values())


@lru_cache(1)
def adapters() -> list[Adapter]:
    config = decoder().config
    return [make_adapter(config, 1, 16, "qv"), make_adapter(config, 2, 40, "qkvoud"), make_adapter(config, 3, 3, "d")]


def stack_of(index: int) -> tuple[str, ...]:
    """Return the adapters of a request: every third has none, some have two."""
    own = adapters()[index % 3 : index % 3 + 1 + index % 2] if index % 3 else []
    return tuple(each.digest for each in own)


def asked(count: int = 12, length: int = 50, sampling: Sampling = GREEDY, adapted: bool = False) -> list[Request]:
    return [
        replace(ask(f"r{i}", p, length, stack_of(i) if adapted else ()), sampling=sampling, seed=i)
        for i, p in enumerate(prompts(count))
    ]


@lru_cache(5)
def alone(sampling: Sampling = GREEDY, adapted: bool = False) -> list[tuple[int, ...]]:
    """Return each prompt's answer when it runs alone, without a cache, and its prompt is computed in one step."""
    every = asked(sampling=sampling, adapted=adapted)
    answers = [Replica(max_running=1, prefix_cache=False).run([each])[0] for each in every]
    assert len(set(answers)) == len(answers)
    return answers


@pytest.mark.parametrize(
    ("sampling", "adapted"),
    [(GREEDY, False), (Sampling(temperature=0.8), False), (GREEDY, True), (SHAPED, False), (PENALISED, False)],
    ids=["greedy", "drawn", "adapters", "filtered", "penalised"],
)
@pytest.mark.parametrize(
    ("num_blocks", "chunk", "max_running"),
    [(400, 5, 8), (400, 512, 16), (400, 100, 3), (40, 64, 16)],
    ids=["small chunks", "all at once", "few at once", "preempting"],
)
def test_an_answer_is_the_same_in_any_batch(
    num_blocks: int, chunk: int, max_running: int, sampling: Sampling, adapted: bool
) -> None:
    expected = alone(sampling, adapted)  # before the first run: all replicas share the memory of one decoder
    replica = Replica(num_blocks=num_blocks, chunk=chunk, max_running=max_running)
    assert replica.run(asked(sampling=sampling, adapted=adapted)) == expected
    assert any(isinstance(event, Preempted) for event in replica.events) == (num_blocks == 40)
    assert replica.run(asked(sampling=sampling, adapted=adapted)) == expected, "with a full cache"
    if chunk == 512:
        assert replica.engine.num_hits > replica.engine.num_misses, "few steps were overlapped"


@pytest.mark.parametrize("num_host_blocks", [3, 1000])
def test_an_answer_is_the_same_with_prefixes_from_host_memory(num_host_blocks: int) -> None:
    expected = alone()
    replica = Replica(num_blocks=40, chunk=64, spill_bytes=num_host_blocks * decoder().block_bytes)
    assert replica.run(asked()) == expected
    assert replica.run(asked()) == expected, "with a full cache"
    host = replica.pool.host
    assert host is not None
    assert min(host.num_spilled, host.num_restored) > 0
    assert (host.num_dropped > 0) == (num_host_blocks == 3)


def test_adapters_change_the_answers_of_their_own_requests_only() -> None:
    plain, changed = alone(), alone(adapted=True)
    assert [one == other for one, other in zip(plain, changed, strict=True)] == [not stack_of(i) for i in range(12)]


def test_rows_that_need_more_than_the_device_draws_change_no_neighbour() -> None:
    needed = Sampling(0.7, typical_p=0.9)
    others = [replace(each, request_id=f"o{i}", sampling=needed) for i, each in enumerate(asked(5))]
    alone(Sampling(temperature=0.8))
    found = Replica(max_running=32).run([*asked(sampling=Sampling(temperature=0.8)), *others])
    assert found[:12] == alone(Sampling(temperature=0.8))
    assert found[12:] == [Replica(prefix_cache=False).run([each])[0] for each in others]


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
        text = next((text for text in self.texts if text[:known] == tuple(tokens)), ())
        coming = enumerate(text[known : known + limit], known)
        return tuple(token if i % 3 else (token + 1) % VOCAB for i, token in coming)


@pytest.mark.parametrize("num_blocks", [400, 40], ids=["in one run", "preempting"])
@pytest.mark.parametrize(
    ("sampling", "adapted"),
    [(GREEDY, False), (Sampling(temperature=0.8), False), (GREEDY, True), (PENALISED, False)],
    ids=["greedy", "drawn", "adapters", "penalised"],
)
def test_verifying_drafts_changes_no_answer(sampling: Sampling, adapted: bool, num_blocks: int) -> None:
    expected = alone(sampling, adapted)
    texts = [prompt + answer for prompt, answer in zip(prompts(12), expected, strict=True)]
    replica = Replica(num_blocks=num_blocks, proposer=PartlyWrongProposer(texts))
    drafted = [replace(each, draft_window=1 + i % 4) for i, each in enumerate(asked(12, 50, sampling, adapted))]
    assert replica.run(drafted) == expected
    assert max(len(event.tokens) for event in replica.events if isinstance(event, Emitted)) > 1, "no draft was accepted"


def test_decode_steps_between_those_with_drafts_are_launched_ahead() -> None:
    texts = [prompt + answer for prompt, answer in zip(prompts(12), alone(), strict=True)]
    replica = Replica(proposer=PartlyWrongProposer([text[: len(text) - 25] for text in texts]))
    assert replica.run(replace(each, draft_window=3) for each in asked()) == alone()
    assert replica.engine.num_hits > replica.engine.num_misses


GUIDED = [GREEDY, Sampling(temperature=0.8), PENALISED, replace(SHAPED, min_tokens=9)]


def guided(drafts: int = 0) -> list[Request]:
    """Return requests of which three in four must follow a structure."""
    return [
        replace(each, sampling=GUIDED[i % 4], guide=EveryThird(VOCAB) if i % 4 else None, draft_window=drafts)
        for i, each in enumerate(asked())
    ]


def test_rows_with_a_structure_change_no_answer_and_run_ahead() -> None:
    expected = [Replica(max_running=1, prefix_cache=False).run([each])[0] for each in guided()]
    replica = Replica()
    assert replica.run(guided()) == expected
    assert replica.engine.num_hits > replica.engine.num_misses
    assert Replica(num_blocks=40, chunk=64).run(guided()) == expected
    texts = [prompt + answer for prompt, answer in zip(prompts(12), expected, strict=True)]
    assert Replica(proposer=PartlyWrongProposer(texts)).run(guided(3)) == expected
    for request, answer in zip(guided(), expected, strict=True):
        assert request.guide is None or all(
            request.guide.takes(answer[:index], (), token) for index, token in enumerate(answer)
        )


def test_structured_answers_equal_those_of_the_reference_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [replace(each, guide=EveryThird(VOCAB)) for each in asked()]
    found = Replica().run(requests)
    monkeypatch.setattr(GpuDecoder, "can_draw", lambda *_: False)
    replica = Replica()
    assert replica.run(requests) == found
    assert replica.engine.num_hits + replica.engine.num_misses == 0, "the device has drawn"


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_come_end_and_are_preempted_at_random_change_no_other_answer(seed: int) -> None:
    rng, expected = Random(seed), alone()
    replica = Replica(num_blocks=rng.choice([45, 60, 400]), chunk=rng.choice([16, 64, 512]), max_running=12)
    ended: set[str] = set()
    late = [replace(each, request_id=f"late {i}", priority=i % 2) for i, each in enumerate(asked())]

    def disturb() -> None:
        if late and rng.random() < 0.2:
            replica.scheduler.submit(late.pop())
        if rng.random() < 0.1:
            name = f"r{rng.randrange(12)}"
            if replica.scheduler.end(name, "cancelled"):
                ended.add(name)

    found = replica.run(asked(), disturb)
    for i in range(12):
        if f"r{i}" in ended:
            assert found[i] == expected[i][: len(found[i])]
        else:
            assert found[i] == expected[i]
    said: dict[str, tuple[int, ...]] = {}
    for event in replica.events:
        if isinstance(event, Emitted) and event.request_id.startswith("late"):
            said[event.request_id] = said.get(event.request_id, ()) + event.tokens
    assert all(answer == expected[int(name.split()[1])] for name, answer in said.items())
    assert replica.pool.num_free == replica.pool.capacity


def test_a_stop_token_ends_an_answer_that_was_computed_ahead() -> None:
    expected = alone()
    stops = [frozenset({answer[20]}) for answer in expected]
    found = Replica().run(replace(each, stop_ids=stop) for each, stop in zip(asked(), stops, strict=True))
    for answer, whole, stop in zip(found, expected, stops, strict=True):
        assert answer == whole[: next(i for i, token in enumerate(whole) if token in stop)]
