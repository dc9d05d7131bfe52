"""Real models: the first layers of a trained model guess for it. No answer changes, and the draws share their noise."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as ListLike
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from bench.early_exit import first_layers, with_faint_layers
from octet.clock import Clock, SystemClock
from specialist.engines.native.draft_model import _create_on_card
from specialist.engines.native.settings import NativeSettings
from specialist.models.checkpoint import Checkpoint
from specialist.models.checks import check_draft_model
from specialist.models.demo import cache_directory
from specialist.models.fields import ModelRefused
from specialist.models.open import open_checkpoint
from specialist.models.progress import silent
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import GuideExhausted, Request, Sampling, Sequence
from specialist.scheduling.step import Emitted, Finished
from specialist.server.native_replica import create_native_replica, replica_from_checkpoint
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from specialist.text.prompt import Structure
from specialist.text.structured_output import Guide
from tests.laws.oracle import EagerProposer, ModelProposer
from tests.models.plain import write_model

OPENINGS = ("Once upon a time", "Lily and Tom", "One day, a big dog", "The sun was")
KINDS: dict[str, Sampling] = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.9, top_p=0.95),
    "penalties": Sampling(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=20),
    "bias": Sampling(logit_bias=((300, 4.0),), num_logprobs=2),
}


class WrongProposer(DraftProposer):
    """Proposes tokens that probably never follow."""

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: (400, 401, 402)[:limit] for seq, limit in limits.items()}


@pytest.fixture(scope="module")
def checkpoint(stories_dir: Path) -> Checkpoint:
    """The trained model, with later layers that change little."""
    return with_faint_layers(open_checkpoint(stories_dir), 2, 0.1)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep packed weights apart from those of real models, but share the compiled kernels."""
    kernels, own = cache_directory() / "kernels", tmp_path_factory.getbasetemp() / "cache"
    kernels.mkdir(parents=True, exist_ok=True)
    own.mkdir(exist_ok=True)
    if not (own / "kernels").exists():
        (own / "kernels").symlink_to(kernels)
    monkeypatch.setenv("OCTET_CACHE", str(own))


def replica_of(
    checkpoint: Checkpoint, *, eager: bool = True, clock: Clock | None = None, **settings: Any
) -> AssembledReplica:
    asked = ReplicaSettings(name="tales", draft_window=4, threads=1, **{"kv_bytes": 4 << 20, **settings})
    made = replica_from_checkpoint(
        checkpoint, "tales", asked, clock or SystemClock(), draft=first_layers(checkpoint, 2)
    )
    if eager and made.proposer is not None and made.proposer.model is not None:
        made.scheduler.rows._proposer = ModelProposer(None, made.proposer.model.model)
    return made


def requests_of(replica: AssembledReplica, window: int, guided: bool = False) -> Iterator[Request]:
    grammar = replica.grammars.compile(Structure("regex", "[a-zA-Z ,.]{40,80}"))
    vocabulary = replica.codec
    for i, opening in enumerate(OPENINGS[:2]):
        prompt = tuple(vocabulary.encode(opening))
        for kind, sampling in KINDS.items():
            guide = Guide(grammar) if guided else None
            yield Request(
                f"{kind} {i} {window}", replica.lane, prompt, 60, i % 2, sampling=sampling, seed=7 + i,
                stop_ids=frozenset(vocabulary.stop_ids), draft_window=window, guide=guide,
            )  # fmt: skip


class Answered:
    def __init__(self, replica: AssembledReplica, requests: Iterator[Request]) -> None:
        loop = StepLoop(replica.scheduler, replica.engine)
        for request in requests:
            replica.scheduler.submit(request)
        while loop.run_once() is not None:
            pass
        self.answers: dict[str, tuple[int, ...]] = {}
        self.ends: dict[str, Finished] = {}
        for event in replica.scheduler.take_events():
            name = event.request_id.rpartition(" ")[0]
            if isinstance(event, Emitted):
                self.answers[name] = self.answers.get(name, ()) + event.tokens
            elif isinstance(event, Finished):
                self.ends[name] = event

    def hit_rate(self, kind: str) -> float:
        counts = [each for name, end in self.ends.items() if name.startswith(kind) for each in end.drafts]
        counts = [each for each in counts if each.source == "model"]
        return sum(each.num_accepted for each in counts) / sum(each.num_drafted for each in counts)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        ("float32", {}),
        ("fused", {}),
        ("fused", {"num_blocks": 24, "max_running": 5}),
        ("fused", {"prefix_cache": False}),
    ],
    ids=str,
)
def test_answers_do_not_depend_on_a_draft_model(
    kernel: str, guided: bool, settings: dict[str, Any], checkpoint: Checkpoint
) -> None:
    replica = replica_of(checkpoint, kernel=kernel, **settings)
    plain = Answered(replica, requests_of(replica, 0, guided))
    drafted = Answered(replica, requests_of(replica, 4, guided))
    assert drafted.answers == plain.answers
    assert all(end.reason in ("stop", "length") for end in drafted.ends.values())
    assert drafted.hit_rate("greedy") > 0.8
    assert replica.proposer is not None and replica.proposer.model is not None
    model = replica.proposer.model.model
    assert replica.proposer.num_failed == replica.scheduler.rows.num_failed_proposals == 0
    model.pool.check()


def test_shared_noise_is_right_more_often_than_the_likeliest_token(checkpoint: Checkpoint) -> None:
    """The reason for drawing as the model will."""
    replica = replica_of(checkpoint)
    assert replica.proposer is not None and replica.proposer.model is not None
    model, sampling = replica.proposer.model.model, Sampling(temperature=1.5)

    def asked() -> Iterator[Request]:
        for seed in range(24):
            prompt = tuple(replica.codec.encode(OPENINGS[seed % len(OPENINGS)]))
            yield Request(f"r {seed} 4", replica.lane, prompt, 60, sampling=sampling, seed=seed, draft_window=4)

    shared, own = Answered(replica, asked()).hit_rate("r"), model._own

    def greedy(seq: Sequence) -> Sequence:
        made = own(seq)
        made.request = replace(made.request, sampling=Sampling())
        return made

    model._own = greedy  # type: ignore[method-assign]
    assert shared > Answered(replica, asked()).hit_rate("r") + 0.03


class FragileGuide:
    """Breaks for every text that is not the beginning of one answer."""

    def __init__(self, answer: tuple[int, ...]) -> None:
        self._answer = answer
        self.num_broken = 0

    def allowed(self, generated: ListLike[int], guessed: ListLike[int] = ()) -> bytes | None:
        self._follow(generated, guessed)
        return None

    def takes(self, generated: ListLike[int], guessed: ListLike[int], token: int) -> bool:
        self._follow(generated, guessed)
        return False  # so that `allowed` is asked, too

    def ended(self, generated: ListLike[int], fresh: ListLike[int]) -> bool:
        return False

    def _follow(self, generated: ListLike[int], guessed: ListLike[int]) -> None:
        text = (*generated, *guessed)
        if self._answer[: len(text)] != text:
            self.num_broken += 1
            raise GuideExhausted("too costly to follow")


@pytest.mark.parametrize("proposer", [ModelProposer, EagerProposer, WrongProposer])
@pytest.mark.parametrize("kernel", ["fused", "float32"])
def test_a_structure_that_breaks_only_at_a_draft_fails_nothing(
    kernel: str, proposer: type[DraftProposer], checkpoint: Checkpoint
) -> None:
    """Wrong drafts lead where the answer never goes."""
    replica = replica_of(checkpoint, kernel=kernel)
    assert replica.proposer is not None and replica.proposer.model is not None
    plain = Answered(replica, requests_of(replica, 0))
    replica.scheduler.rows._proposer = proposer(None, replica.proposer.model.model)
    guides = {name: FragileGuide(answer) for name, answer in plain.answers.items()}
    asked = (replace(each, guide=guides[each.request_id.rpartition(" ")[0]]) for each in requests_of(replica, 4))
    drafted = Answered(replica, asked)
    assert drafted.answers == plain.answers
    assert {end.reason for end in drafted.ends.values()} <= {"stop", "length"}
    assert sum(guide.num_broken for guide in guides.values()) > 10
    assert replica.scheduler.rows.num_failed_proposals == 0


def test_both_pools_share_the_memory(checkpoint: Checkpoint) -> None:
    replica = replica_of(checkpoint, kv_bytes=1 << 20)
    assert replica.proposer is not None and replica.proposer.model is not None
    pools = [replica.scheduler.pool, replica.proposer.model.model.pool]
    assert pools[0].capacity == pools[1].capacity
    config, engines = checkpoint.config, [replica.engine, replica.proposer.model.model._engine]
    decoders: list[Any] = [engine.decoder for engine in engines]  # type: ignore[attr-defined]
    assert [each.config.num_layers for each in decoders] == [config.num_layers, 2]
    slot = sum(2 * each.config.num_layers * each.config.kv_size * 4 for each in decoders)
    num_bytes = decoders[0].num_blocks * decoders[0].block_size * slot
    assert 0.9 * (1 << 20) < num_bytes <= 1 << 20


def test_a_pool_that_fills_a_card_is_divided(checkpoint: Checkpoint) -> None:
    """On a card, the large model takes what its draft model leaves. Here, both are on the CPU."""
    settings = NativeSettings(cache_directory(), kernel="float32", kv_bytes=1 << 20, threads=1)
    pair = _create_on_card(checkpoint, first_layers(checkpoint, 2), settings, silent, None)
    decoders: list[Any] = [parts.engine.decoder for parts in pair]
    assert decoders[0].num_blocks == decoders[1].num_blocks
    assert 0.9 * (1 << 20) < sum(each.block_bytes * each.num_blocks for each in decoders) <= 1 << 20


if torch.cuda.is_available():

    @pytest.mark.parametrize("memory", [{"kv_bytes": 4 << 20}, {"kv_bytes": None, "memory_fraction": 0.1}], ids=str)
    def test_answers_on_a_gpu_do_not_depend_on_a_draft_model(memory: dict[str, Any], checkpoint: Checkpoint) -> None:
        replica = replica_of(checkpoint, device="cuda", **memory)
        plain = Answered(replica, requests_of(replica, 0))
        drafted = Answered(replica, requests_of(replica, 4))
        assert drafted.answers == plain.answers
        assert drafted.hit_rate("greedy") > 0.8


def test_sequences_beyond_the_draft_models_context_get_no_guesses(checkpoint: Checkpoint) -> None:
    made = replica_of(checkpoint)
    assert made.proposer is not None and made.proposer.model is not None
    made.proposer.model.model.context = 20
    plain = Answered(made, requests_of(made, 0))
    made.scheduler.rows._proposer = made.proposer
    drafted = Answered(made, requests_of(made, 4))
    assert drafted.answers == plain.answers
    assert made.proposer.num_failed == 0


def test_another_vocabulary_is_refused(checkpoint: Checkpoint) -> None:
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    same = (config, vocabulary)
    check_draft_model(same, same, "small")
    with pytest.raises(ModelRefused, match=r"small: as a draft model .* it has 600 tokens and the model 512"):
        check_draft_model((replace(config, vocab_size=600), vocabulary), same, "small")
    text, token = Random(0).choice(list(vocabulary.control_ids.items()))
    other = replace(vocabulary, control_ids={**vocabulary.control_ids, text: token + 1})
    with pytest.raises(ModelRefused, match=f"is token {token} of the model and {token + 1} here"):
        check_draft_model((config, other), same, "small")


def test_a_replica_opens_the_draft_model_that_its_settings_name(tmp_path: Path) -> None:
    config = write_model(tmp_path / "large")
    write_model(tmp_path / "small", num_hidden_layers=1)
    write_model(tmp_path / "other", vocab_size=config.vocab_size + 64)
    settings = ReplicaSettings(
        model=tmp_path / "large", draft_model=tmp_path / "small", draft_window=4, kv_bytes=1 << 20
    )
    replica = create_native_replica(settings, SystemClock())
    assert replica.proposer is not None and replica.proposer.model is not None
    assert [kernel.op for kernel in replica.kernels] == ["linear", "draft model"]
    assert create_native_replica(replace(settings, draft_window=0), SystemClock()).proposer is None
    with pytest.raises(ModelRefused, match="other: as a draft model it must have the vocabulary of the model"):
        create_native_replica(replace(settings, draft_model=tmp_path / "other"), SystemClock())
