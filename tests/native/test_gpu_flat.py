"""A step of few tokens, of which each is a row of a graph, equals the same tokens as a prompt and as decode steps."""

import os
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from specialist.engines.native.engine import StepBatch
from tests.native.device import DEVICE
from tests.native.transformers_models import checkpoint_of, random_model

pytest.importorskip("triton")
if DEVICE.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)

from specialist.engines.native import gpu_decoder
from specialist.engines.native.gpu_decoder import GpuDecoder
from specialist.engines.native.gpu_engine import DecodeRow, DecodeRows
from specialist.engines.native.gpu_inputs import Staging
from specialist.engines.native.shaped_draw import Shaped
from specialist.scheduling.sequence import Sampling
from tests.native.gpu_adapters import make_adapter
from tests.ops.test_gpu_kernels import ON_GPU

BLOCK, VOCAB, LONGEST = 8, 131, 260 if ON_GPU else 80
BUCKETS = (1, 2, 8, 16, 32, 64) if ON_GPU else (1, 4)
SHORT = torch.bfloat16 if ON_GPU else torch.float32
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {"seed": 3}),
    "mistral window": ("mistral", {"seed": 2, "sliding_window": 70 if ON_GPU else 20}),
}
SIZES: dict[str, Any] = {"head_dim": 32, "max_position_embeddings": 400}
SIZES |= {"hidden_size": 1024, "num_hidden_layers": 2} if ON_GPU else {"hidden_size": 64, "num_hidden_layers": 1}


def make(family: str, most_prompt: int = 0) -> GpuDecoder:
    """Return a decoder with random keys and values in its cache."""
    name, changes = FAMILIES[family]
    model = random_model(name, **{**SIZES, **changes}).to(SHORT)
    made = GpuDecoder(
        checkpoint_of(model),
        num_blocks=200,
        block_size=BLOCK,
        device=DEVICE,
        dtype=SHORT,
        buckets=BUCKETS,
        most_prompt=most_prompt,
    )
    generator = torch.Generator().manual_seed(1)
    for cache in (made.k_cache, made.v_cache):
        cache.copy_(torch.randn(cache.shape, generator=generator))
    return made


class Part(NamedTuple):
    """Tokens of a sequence, of which the last ones are followed by samples."""

    start: int
    stop: int
    num_samples: int


class Text(NamedTuple):
    tokens: list[int]
    blocks: list[int]


def texts(count: int, length: int) -> list[Text]:
    rng = Random(count)
    blocks = list(range(1, 1 + count * (length // BLOCK + 1)))
    rng.shuffle(blocks)
    return [
        Text([rng.randrange(VOCAB) for _ in range(length)], [blocks.pop() for _ in range(length // BLOCK + 1)])
        for _ in range(count)
    ]


def batch_of(every: list[Text], parts: list[Part]) -> StepBatch:
    def ints(values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32)

    pairs = list(zip(every, parts, strict=True))
    places = [(text, at) for text, part in pairs for at in range(part.start, part.stop)]
    starts = [0, *accumulate(part.stop - part.start for part in parts)]
    tables = torch.zeros(len(parts), max(-(-part.stop // BLOCK) for part in parts), dtype=torch.int32)
    for row, (text, part) in enumerate(pairs):
        used = text.blocks[: -(-part.stop // BLOCK)]
        tables[row, : len(used)] = ints(used)
    return StepBatch(
        tokens=ints(text.tokens[at] for text, at in places),
        positions=ints(at for _, at in places),
        slots=ints(text.blocks[at // BLOCK] * BLOCK + at % BLOCK for text, at in places),
        query_start=ints(starts),
        context_lens=ints(part.stop for part in parts),
        block_tables=tables,
        outputs=ints(
            at for part, stop in zip(parts, starts[1:], strict=True) for at in range(stop - part.num_samples, stop)
        ),
    )


class Computed(NamedTuple):
    logits: Tensor
    final: Tensor
    k_cache: Tensor  # without block 0 and the blocks of no pool
    v_cache: Tensor


def keep(decoder: GpuDecoder, logits: Tensor) -> Computed:
    caches = (cache[:, 1 : decoder.num_blocks].clone() for cache in (decoder.k_cache, decoder.v_cache))
    return Computed(logits.clone(), decoder._final.clone(), *caches)


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether all bits are equal; the interpreter's sums have no fixed order."""
    return torch.equal(found, expected) if ON_GPU else torch.allclose(found, expected, atol=2e-4, rtol=1e-3)


def steps() -> list[list[Part]]:
    """Return parts of sequences: chunks, drafts and decode rows. Some steps need no logits."""
    if not ON_GPU:
        return [[Part(70, 72, 2), Part(9, 10, 1)], [Part(0, 3, 1), Part(66, 67, 0)], [Part(15, 17, 0)]]
    verify = [Part(70, 74, 4), Part(9, 10, 1), Part(200, 203, 3), Part(15, 18, 2)]
    mixed = [Part(60, 65, 0), Part(0, 3, 1), Part(16, 17, 1), Part(250, 252, 2)]
    inside = [Part(0, 5, 0), Part(31, 34, 0), Part(8, 9, 0), Part(64, 65, 0)]
    return [verify, mixed, inside, [Part(190, 254, 64)], [Part(0, 30, 3), Part(230, 231, 1)]]


LARGE = (
    [
        [Part(0, 40, 1)],
        [Part(3, 100, 1), Part(5, 30, 0)],
        [Part(0, 140, 1)],
        [Part(0, 100, 1), Part(20, 90, 2)],
        [Part(0, 250, 1), Part(10, 60, 0), Part(200, 210, 10)],
    ]
    if ON_GPU
    else [[Part(0, 40, 1)], [Part(0, 70, 1), Part(2, 77, 2)]]
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_that_runs_as_a_large_graph_equals_one_that_does_not(family: str) -> None:
    found, expected = list[Computed](), list[Computed]()
    for decoder, results in ((make(family, LONGEST + 90), found), (make(family), expected)):
        for parts in LARGE:
            every = texts(len(parts), LONGEST)
            results.append(keep(decoder, decoder.forward_mixed(batch_of(every, parts), [()] * len(parts))))
    for one, other in zip(found, expected, strict=True):
        assert all(same(a, b) for a, b in zip(one, other, strict=True))
        assert one.logits.isfinite().all()


@pytest.mark.parametrize("adapted", [False, True], ids=["bare", "adapters"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_flat_step_equals_a_prompt_and_decode_steps(
    family: str, adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, every = make(family), texts(4, LONGEST)
    own = [make_adapter(decoder.config, 1, 5, "qv"), make_adapter(decoder.config, 2, 40, "qkvoud")]
    stacks = [(own[1], own[0]), (), (own[0],), (own[1],)] if adapted else [()] * 4
    before = decoder.k_cache.clone(), decoder.v_cache.clone()

    def compute(parts: list[Part], first: int = 0) -> Computed:
        """Compute parts of the sequences from `first` on."""
        picked = slice(first, first + len(parts))
        return keep(decoder, decoder.forward_mixed(batch_of(every[picked], parts), stacks[picked]))

    def poison(parts: list[Part]) -> None:
        """Put NaN into the slots of tokens that have not been computed."""
        for cache, old in zip((decoder.k_cache, decoder.v_cache), before, strict=True):
            cache.copy_(old)
            for text, part in zip(every, parts, strict=False):
                for at in range(part.start, LONGEST):
                    cache[:, text.blocks[at // BLOCK], at % BLOCK] = torch.nan

    for parts in steps():
        poison(parts)
        flat = compute(parts)
        first = 0
        for row, part in enumerate(parts):
            for at in range(part.start, part.stop):
                logits = compute([Part(at, at + 1, 1)], row).logits
                if (place := at - part.stop + part.num_samples) >= 0:
                    assert same(logits[0], flat.logits[first + place]), "other logits than a decode step"
            first += part.num_samples
        poison(parts)
        with monkeypatch.context() as patch:
            patch.setattr(gpu_decoder, "_MOST_ATTENDED", 0)
            prompt = compute(parts)
        assert flat.logits.isfinite().all() and flat.final.isfinite().all()
        for name, one, other in zip(Computed._fields, flat, prompt, strict=True):
            assert torch.equal(one.isnan(), other.isnan()), f"other slots of {name} were written"
            assert same(one.nan_to_num(), other.nan_to_num()), f"other {name} than as a prompt"


def test_samples_are_drawn_as_in_a_decode_step() -> None:
    decoder, every = make("qwen3"), texts(4, LONGEST)
    parts = steps()[0]
    count = sum(part.num_samples for part in parts)
    heat, noise = [9.0 * (i % 4) for i in range(count)], [(0.4 * i + 0.3) % 1 for i in range(count)]
    logits, drawn = decoder.launch_batch(batch_of(every[: len(parts)], parts), [()] * len(parts), heat, noise)
    logits, (tokens, peaks) = logits.clone(), drawn.wait()
    assert peaks == logits.amax(1).tolist()
    same = decoder._draws.draw(logits, heat, noise)
    other = decoder._draws.draw(logits, heat, [1.0 - each for each in noise])
    assert other.wait()[0] != tokens, "the draws do not depend on the numbers"
    assert same.wait() == (tokens, peaks), "a later draw has overwritten those before"


def test_rows_draw_again_from_what_their_masks_allow_and_the_next_step_takes_that() -> None:
    decoder, every, position = make("qwen3"), texts(4, LONGEST), 20
    known = [text.tokens[: position + 1] for text in every]
    changed = {1: Sampling(0.8), 2: Sampling(0.6, repetition_penalty=1.3, frequency_penalty=0.5)}
    masks = [np.packbits(np.arange(160) % 3 == rest, bitorder="little") for rest in range(3)]
    for step in range(2):
        rows = [
            DecodeRow(each[-1], -1, position + step, text.blocks, 0.7, 0.4)
            for each, text in zip(known, every, strict=True)
        ]
        if step:  # these tokens are taken on the device
            rows = [each._replace(token=0, source=row) for row, each in enumerate(rows)]
        before, _ = decoder.launch(DecodeRows.of(rows)).wait()
        logits = decoder._logits[:4].clone()
        again = {
            row: Shaped(want, 0.3, tuple(known[row]), 5, frozenset(), masks[(row + step) % 3], key=row)
            for row, want in changed.items()
        }
        drawn, peaks = decoder.redraw([again.get(row) for row in range(4)]).wait()
        assert [drawn[0], drawn[3]] == [before[0], before[3]]
        assert [drawn[row] % 3 for row in changed] == [(row + step) % 3 for row in changed]
        assert (drawn[1:3], peaks[1:3]) == decoder.draw_shaped(logits[1:3].clone(), list(again.values()))
        for row, token in enumerate(drawn):
            known[row].append(token)
    following = (each._replace(token=tokens[-2], source=-1) for each, tokens in zip(rows, known, strict=True))
    decoder.launch(DecodeRows.of(following)).wait()
    assert same(decoder._logits[:4], logits), "the second step took other tokens than those drawn again"


def test_a_step_is_one_copy_and_two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, every = make("qwen3"), texts(2, LONGEST)
    ran, copied = list[tuple[str, int]](), list[Staging]()
    replay, send = decoder._graphs.replay, Staging.send

    def run(name: Any) -> None:
        ran.append((name.kind, name.rows))
        replay(name)

    def copy(staging: Staging, target: Tensor, count: int) -> None:
        copied.append(staging)
        send(staging, target, count)

    monkeypatch.setattr(decoder._graphs, "replay", run)
    monkeypatch.setattr(Staging, "send", copy)
    few = next(each for each in BUCKETS if each >= 3)
    decoder.launch_batch(batch_of(every, [Part(3, 5, 1), Part(7, 8, 1)]), [(), ()], [0.0] * 2, [0.0] * 2)
    assert ran == [("flat", few), ("outputs", BUCKETS[1])]
    decoder.launch_batch(batch_of(every, [Part(3, 5, 0), Part(7, 8, 0)]), [(), ()], [], [])
    assert ran[2:] == [("flat", few)], "a step without samples needs no logits"
    assert len(copied) == 2


def test_a_step_of_many_tokens_or_long_contexts_runs_as_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, (text,) = make("qwen3"), texts(1, LONGEST)
    ran = []
    monkeypatch.setattr(decoder, "_run_flat", lambda *_: ran.append("flat"))
    monkeypatch.setattr(decoder, "_prefill", lambda *_: ran.append("prompt"))
    for most, part in ((6, Part(0, 3, 1)), (5, Part(0, 3, 1)), (1 << 20, Part(0, BUCKETS[-1] + 1, 0))):
        monkeypatch.setattr(gpu_decoder, "_MOST_ATTENDED", most)
        decoder.forward_mixed(batch_of([text], [part]), [()])
    assert ran == ["flat", "prompt", "prompt"]


def test_graphs_of_prompts_are_captured_with_tokens_that_all_of_them_have(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, sizes = make("qwen3", 320), list[int]()
    captured: Any = decoder._captured

    def check(names: Any, _: object) -> None:
        for name in names:
            inputs = captured.inputs(name.rows)
            assert inputs.starts[:2].tolist() == [0, captured.buckets[0]]
            assert inputs.firsts.min() == 0
            assert inputs.firsts[inputs.firsts < 1 << 30].max() < name.rows
            assert len(inputs.tokens) == name.rows
            sizes.append(name.rows)

    monkeypatch.setattr(decoder._graphs, "capture_together", check)
    monkeypatch.setattr(decoder, "_compute", lambda name: sizes.append(-name.rows))
    decoder._capture_prompts(captured, None)  # type: ignore[arg-type]
    assert sorted(sizes[:3]) == [-320, -128, -64], "these have kernels of their own"
    assert sizes[3:] == [320, 256, 224, 192, 160, 128, 64]


@pytest.mark.parametrize(("name", "expected"), [("cuda", []), ("cuda:1", [1]), ("cpu", [])])
def test_a_thread_enters_the_gpu_that_the_device_names(
    name: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = list[int | None]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: entered.append(device.index))
    decoder: Any = SimpleNamespace(device=torch.device(name))
    GpuDecoder.enter_thread(decoder)
    assert entered == expected
