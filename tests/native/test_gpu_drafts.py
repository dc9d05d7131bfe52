"""On a GPU, a model and its draft model share the card, and no answer depends on what the draft model guesses."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

import pytest
import torch

from bench.agreeing_models import agreeing_models
from bench.random_models import letters_tokenizer
from octet.clock import SystemClock
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint, Vocabulary
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import GREEDY, Request, Sampling, Sequence
from specialist.scheduling.step import Emitted, Finished
from specialist.server.native_replica import replica_from_checkpoint
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from tests.laws.oracle import ModelProposer
from tests.native.device import DEVICE
from tests.native.every_third import EveryThird
from tests.native.transformers_models import checkpoint_of, random_model

pytest.importorskip("triton")
if DEVICE.type != "cuda":
    pytest.skip("needs a GPU", allow_module_level=True)

from specialist.engines.native.gpu_engine import GpuEngine

VOCAB = 600
KINDS = [
    GREEDY,
    Sampling(temperature=0.8),
    Sampling(0.7, top_k=40, top_p=0.9, min_p=0.01),
    Sampling(0.6, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, logit_bias=((5, 2.0),)),
]
SMALL: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "attention_bias": False, "mlp_bias": False, "eos_token_id": 0,
    "bos_token_id": None,
}  # fmt: skip


class StrictProposer(ModelProposer):
    """Lets the scheduler count what fails."""

    def _guesses(self, limits: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        assert self.model is not None
        model = self.model.model
        model.read(list(limits), 50)
        guesses = model.guess({seq: limit for seq, limit in limits.items() if model.num_unread(seq) < 20})
        for seq in guesses:
            seq.draft_source = "model"
        return guesses


def replica_of(large: Checkpoint, small: Checkpoint, **changes: Any) -> AssembledReplica:
    asked = {"draft_window": 6, "max_running": 16, "kv_bytes": 8 << 20, **changes}
    settings = ReplicaSettings(name="tales", device="cuda", dtype="bfloat16", **asked)
    made = replica_from_checkpoint(large, "tales", settings, SystemClock(), draft=small)
    assert made.proposer is not None and made.proposer.model is not None
    assert isinstance(made.engine, GpuEngine) and made.proposer.model.model._in_turn is not None
    made.scheduler.rows._proposer = StrictProposer(None, made.proposer.model.model)
    return made


@lru_cache(1)
def the_same() -> AssembledReplica:
    """Return a replica whose draft model is the model itself."""
    model = random_model("qwen3", seed=3, hidden_size=256, head_dim=64, num_attention_heads=4, vocab_size=VOCAB)
    vocabulary = Vocabulary(letters_tokenizer(VOCAB), {}, None, frozenset(), None)
    checkpoint = replace(checkpoint_of(model.bfloat16()), vocabulary=vocabulary)
    return replica_of(checkpoint, checkpoint)


@lru_cache(1)
def agreeing(**changes: Any) -> AssembledReplica:
    pair = agreeing_models({**SMALL, "num_hidden_layers": 2}, SMALL, (0.75,), "cuda")
    return replica_of(*pair, **changes)


def requests(replica: AssembledReplica, window: int, count: int = 10, guided: bool = False) -> list[Request]:
    rng = Random(5)
    prompts = [tuple(rng.randrange(VOCAB) for _ in range(1 + 17 * i % 90)) for i in range(count)]
    return [
        Request(
            f"{i} {window}", replica.lane, prompt, 40, sampling=KINDS[i % len(KINDS)], seed=i, draft_window=window,
            guide=EveryThird(VOCAB) if guided and i % 3 == 0 else None,
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip


def run(replica: AssembledReplica, asked: list[Request]) -> tuple[list[tuple[int, ...]], list[Finished]]:
    loop = StepLoop(replica.scheduler, replica.engine)
    for request in asked:
        replica.scheduler.submit(request)
    while loop.run_once() is not None:
        pass
    said: dict[str, tuple[int, ...]] = {request.request_id: () for request in asked}
    ends = []
    for event in replica.scheduler.take_events():
        if isinstance(event, Emitted):
            said[event.request_id] += event.tokens
        elif isinstance(event, Finished):
            ends.append(event)
    assert replica.scheduler.rows.num_failed_proposals == 0
    assert {end.reason for end in ends} == {"length"}
    replica.scheduler.pool.check()
    return list(said.values()), ends


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("window", [1, 2, 6])
def test_the_same_model_guesses_every_token(window: int, count: int) -> None:
    """Its guesses are drawn in turn from graphs, the model's samples from a step that checks them: all bits agree."""
    replica = the_same()
    plain, _ = run(replica, requests(replica, 0, count))
    drafted, ends = run(replica, requests(replica, window, count))
    assert drafted == plain
    assert all(end.num_drafted == end.num_accepted for end in ends)
    # The draft model reads 50 tokens a step, so the last of ten rows waits for nine steps with its first guess.
    rounds = (40 - 12) // (1 + window)
    assert all(end.num_accepted >= rounds * window for end in ends)


def test_answers_with_structures_do_not_depend_on_guesses() -> None:
    replica = the_same()
    plain, _ = run(replica, requests(replica, 0, guided=True))
    drafted, ends = run(replica, requests(replica, 4, guided=True))
    assert drafted == plain
    assert all(end.num_drafted == end.num_accepted for end in ends)


def test_guesses_that_are_sometimes_wrong_change_no_answer() -> None:
    replica = agreeing()
    plain, _ = run(replica, requests(replica, 0))
    drafted, ends = run(replica, requests(replica, 6))
    assert drafted == plain
    greedy = [end for end in ends if int(end.request_id.split()[0]) % len(KINDS) == 0]
    assert 0.2 < sum(end.num_accepted for end in greedy) / sum(end.num_drafted for end in greedy) < 0.95


def test_both_pools_fill_the_share_of_the_card() -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    share = (torch.cuda.memory_reserved() + min(6 << 30, free - (2 << 30))) / total
    replica = agreeing(kv_bytes=None, memory_fraction=share)
    assert replica.proposer is not None and replica.proposer.model is not None
    engines: list[Any] = [replica.engine, replica.proposer.model.model._engine]
    decoders = [engine.decoder for engine in engines]
    assert all(isinstance(decoder, TorchDecoder) for decoder in decoders)
    assert decoders[0].num_blocks == decoders[1].num_blocks > 1000
    assert run(replica, requests(replica, 6))[0] == run(replica, requests(replica, 0))[0]
