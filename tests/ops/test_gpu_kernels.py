"""The kernels for GPUs compute what the references compute, and a row's bits do not depend on the other rows."""

import os
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from specialist.ops.reference import layers
from specialist.ops.reference.sampling import pick_by_cumulative
from tests.native.device import DEVICE

pytest.importorskip("triton")
if DEVICE.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)

from specialist.ops.gpu import attention, linear, norm, prompt_attention, sampling

ON_GPU = DEVICE.type == "cuda"
# Triton's interpreter multiplies no bfloat16.
SHORT, F32 = torch.bfloat16 if ON_GPU else torch.float16, torch.float32
COUNTS = (1, 2, 8, 13, 16, 24, 32, 50, 64, 100, 128, 200, 300) if ON_GPU else (1, 3, 16, 33)
SHAPES = (
    [(SHORT, (200, 896)), (SHORT, (6144, 1024)), (SHORT, (1024, 3072)), (SHORT, (2048, 8192)), (SHORT, (6144, 4096))]
    if ON_GPU
    else [(SHORT, (96, 64)), (SHORT, (32, 1024))]
)  # types and [rows, columns] of weights; sums over 1024 columns and more are in parts, but for the last


def random(*shape: int, dtype: torch.dtype = SHORT, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(DEVICE, dtype)


def error(found: Tensor, expected: Tensor) -> float:
    assert found.isfinite().all(), "not every element was written"
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether all bits are equal; the interpreter's sums have no fixed order."""
    return torch.equal(found, expected) if ON_GPU else error(found, expected) < 1e-3


def product(x: Tensor, weight: Tensor, *, gated: bool = False, **options: Tensor | float | None) -> Tensor:
    rows = len(weight) // 2 if gated else len(weight)
    out = torch.full((len(x), rows), torch.nan, dtype=x.dtype, device=DEVICE)
    workspace = linear.Workspace(DEVICE)
    linear.linear(x, weight, workspace, out, gated=gated, **options)  # type: ignore[arg-type]
    assert not workspace.arrived.any()
    return out


@pytest.mark.parametrize(("dtype", "shape"), [*SHAPES, (F32, (96, 64))], ids=str)
def test_products_equal_the_reference_and_a_row_has_the_same_bits_in_any_batch(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    rows, columns = shape
    most = 2e-6 if dtype == F32 else 8e-3
    weight, x = random(rows, columns, dtype=dtype, scale=columns**-0.5), random(max(COUNTS), columns, dtype=dtype)
    bias, before = random(rows, dtype=dtype, seed=1), random(max(COUNTS), rows, dtype=dtype, seed=2)
    plain = x.double() @ weight.double().T
    gate, up = plain.chunk(2, dim=1)
    cases: list[tuple[str, dict[str, bool], bool, bool, Tensor]] = [
        ("bias and residual", {}, True, True, plain + bias.double() + before.double()),
        ("gated", {"gated": True}, False, False, torch.nn.functional.silu(gate) * up),
    ]
    for name, options, biased, added, expected in cases:
        whole: Tensor | None = None
        for count in sorted(COUNTS, reverse=True):
            found = product(
                x[:count], weight, bias=bias if biased else None, residual=before[:count] if added else None, **options
            )
            assert error(found, expected[:count]) < most, f"{name}, {count} rows"
            whole = found if whole is None else whole
            assert same(found, whole[:count]), f"{name}: {count} rows have other bits than {len(whole)}"


@pytest.mark.parametrize("size", [64, 896, 1024, 3072, 4096] if ON_GPU else [64, 1024])
@pytest.mark.parametrize(("dtype", "most"), [(SHORT, 8e-3), (F32, 1e-6)])
def test_norms_equal_the_reference_also_within_a_product(size: int, dtype: torch.dtype, most: float) -> None:
    x, gains = random(9, size, dtype=dtype, scale=3.0), random(size, dtype=dtype, seed=1)
    normed = norm.rms_norm(x, gains, 1e-5, torch.full_like(x, torch.nan))
    assert error(normed, layers.rms_norm(x.double(), gains.double(), 1e-5)) < most
    weight = random(64, size, dtype=dtype, scale=size**-0.5)
    for count in (1, 2, 8):
        if linear.norms_within(count, weight):
            within = product(x[:count], weight, norm=gains, eps=1e-5)
            assert same(within, product(normed[:count], weight))


def paged(contexts: list[int], block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return tables of scattered blocks, and caches of random keys and values, with NaN in all blocks of no table."""
    rng = Random(len(contexts))
    counts = [-(-context // block_size) for context in contexts]
    ids = list(range(1, sum(counts) + 1))
    rng.shuffle(ids)
    tables = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
    caches = [random(sum(counts) + 2, block_size, kv_heads, head_dim, dtype=dtype, seed=seed) for seed in (3, 4)]
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([ids.pop() for _ in range(count)])
    for cache in caches:
        cache[-1] = torch.nan
    return tables, *caches


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize(("dtype", "most"), [(SHORT, 1.5e-2), (F32, 1e-5)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "normed"),
    [(16, 8, 128, True), (8, 2, 64, False), (3, 3, 32, False), (20, 1, 64, True)],
)
def test_attention_equals_the_reference_and_has_the_same_bits_in_any_batch(
    heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: torch.dtype, most: float, window: int | None
) -> None:
    contexts = [1, 64, 65, 17, 300, 256, 257, 1100] if ON_GPU else [1, 65, 300]
    size, block_size = (heads + 2 * kv_heads) * head_dim, 16
    tables, k_cache, v_cache = paged(contexts, block_size, kv_heads, head_dim, dtype)
    count = len(contexts)
    qkv = random(count, size, dtype=dtype)
    norms = (random(head_dim, dtype=dtype, seed=5), random(head_dim, dtype=dtype, seed=6)) if normed else None
    angles = torch.outer(torch.arange(2048.0), 10000.0 ** (-torch.arange(head_dim // 2) / (head_dim // 2)))
    turns = torch.stack((angles.cos(), angles.sin()), 1).to(DEVICE)
    positions = torch.tensor(contexts, dtype=torch.int32, device=DEVICE) - 1
    slots = torch.tensor(
        [int(tables[row, (c - 1) // block_size]) * block_size + (c - 1) % block_size for row, c in enumerate(contexts)],
        dtype=torch.int32,
        device=DEVICE,
    )
    wide = torch.nn.functional.pad(tables, (0, 3), value=k_cache.shape[0] - 1)  # blocks of NaN that no row has
    widths = torch.tensor([wide.shape[1]], dtype=torch.int32, device=DEVICE)

    q, k, v = torch.split(qkv.view(count, -1, head_dim), [heads, kv_heads, kv_heads], 1)
    if norms is not None:
        q, k = layers.rms_norm(q, norms[0], 1e-6), layers.rms_norm(k, norms[1], 1e-6)
    cos, sin = (part[positions.long()].unsqueeze(1) for part in turns.unbind(1))
    turned, k = layers.rotate(q, cos, sin), layers.rotate(k, cos, sin)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    layers.write_kv(k, v, expected_k, expected_v, slots.long())
    starts, lens = torch.arange(count + 1, dtype=torch.int32), torch.tensor(contexts, dtype=torch.int32)
    seen = layers.views(starts, lens, tables, block_size, window, DEVICE)
    expected = layers.attend(turned, expected_k, expected_v, seen)

    # as a prompt's rows are computed
    written_k, written_v = k_cache.clone(), v_cache.clone()
    q_out = torch.full((count, heads, head_dim), torch.nan, dtype=dtype, device=DEVICE)
    attention.norm_rope_write(qkv, norms, 1e-6, turns, positions, slots, q_out, written_k, written_v)
    assert error(q_out, turned) < most
    again_k, again_v = k_cache.clone(), v_cache.clone()
    attention.norm_rope_write(qkv, norms, 1e-6, turns, positions, slots, None, again_k, again_v)
    assert torch.equal(again_k.nan_to_num(), written_k.nan_to_num())
    assert error(written_k[:-1], expected_k[:-1]) < most
    assert torch.equal(written_v[:-1], expected_v[:-1])
    out = torch.full_like(q_out, torch.nan)
    blocks = [
        torch.tensor(part, dtype=torch.int32, device=DEVICE)
        for part in prompt_attention.query_blocks(starts.numpy(), lens.numpy(), heads // kv_heads)
    ]
    prompt_attention.attend(
        q_out,
        (blocks[0], blocks[1]),
        starts.to(DEVICE),
        lens.to(DEVICE),
        wide.to(DEVICE),
        widths,
        written_k,
        written_v,
        out,
        window,
    )
    assert error(out, expected) < most

    # as decode rows, alone and together: programs share a context only while there are few rows
    for rows in ([each] for each in range(count)), [list(range(count))], [[row % count for row in range(70)]]:
        for picked in rows:
            decode_k, decode_v = k_cache.clone(), v_cache.clone()
            result = torch.full((len(picked), heads * head_dim), torch.nan, dtype=dtype, device=DEVICE)
            space = attention.AttentionSpace(len(picked), 2048, heads, kv_heads, head_dim, DEVICE)
            attention.decode(
                qkv[picked], norms, 1e-6, turns, positions[picked], wide[picked].to(DEVICE), widths, decode_k, decode_v,
                result, space, num_rows=len(picked), window=window,
            )  # fmt: skip
            assert not space.arrived.any()
            assert same(result, out.flatten(1)[picked]), f"rows {picked} have other bits than in a prompt"
            flat = torch.full_like(result, torch.nan)
            owners = torch.tensor(picked, dtype=torch.int32, device=DEVICE)
            attention.decode(
                qkv[picked], norms, 1e-6, turns, positions[picked], wide.to(DEVICE), widths, again_k, again_v,
                flat, space, num_rows=len(picked), owners=owners, window=window,
            )  # fmt: skip
            assert not space.arrived.any()
            assert same(flat, result), f"rows {picked} have other bits if their keys and values are written first"
            assert torch.equal(again_k.nan_to_num(), written_k.nan_to_num()), "the cache has changed"
            at = slots[picked].long()
            for decoded, written in ((decode_k, written_k), (decode_v, written_v)):
                flat, other = decoded.view(-1, kv_heads, head_dim), written.view(-1, kv_heads, head_dim)
                assert same(flat[at], other[at])


@pytest.mark.parametrize("group", [1, 2, 3, 20, 64])
def test_blocks_of_queries_hold_every_token_once_and_the_longest_contexts_come_first(group: int) -> None:
    rng, size = Random(group), prompt_attention.queries(group)
    for _ in range(20):
        lengths = [rng.choice((0, 1, size, 5 * size, rng.randint(0, 500))) for _ in range(rng.randint(1, 9))]
        contexts = [length + rng.choice((0, rng.randint(0, 4000))) for length in lengths]
        starts = np.cumsum([0, *lengths], dtype=np.int32)
        rows, firsts = prompt_attention.query_blocks(starts, np.array(contexts, dtype=np.int32), group)
        assert rows.dtype == firsts.dtype == np.int32
        found = [(row, token) for row, first in zip(rows.tolist(), firsts.tolist(), strict=True)
                 for token in range(first, min(first + size, int(starts[row + 1])))]  # fmt: skip
        assert sorted(found) == [(row, int(starts[row]) + each) for row, n in enumerate(lengths) for each in range(n)]
        seen = [contexts[row] - int(starts[row + 1]) + first for row, first in zip(rows, firsts, strict=True)]
        assert seen == sorted(seen, reverse=True)


def test_prompts_in_chunks_have_the_same_bits_as_whole_prompts() -> None:
    heads, kv_heads, head_dim, length = 4, 2, 64, 300 if ON_GPU else 70
    tables, k_cache, v_cache = paged([length], 16, kv_heads, head_dim, SHORT)
    q = random(length, heads, head_dim)

    def attend(first: int, stop: int) -> Tensor:
        starts = torch.tensor([0, stop - first], dtype=torch.int32)
        lens = torch.tensor([stop], dtype=torch.int32)
        rows, firsts = prompt_attention.query_blocks(starts.numpy(), lens.numpy(), heads // kv_heads)
        blocks = (  # and two without tokens
            torch.tensor([*rows, 0, 0], dtype=torch.int32, device=DEVICE),
            torch.tensor([*firsts, stop - first, 1 << 30], dtype=torch.int32, device=DEVICE),
        )
        widths = torch.tensor([tables.shape[1]], dtype=torch.int32, device=DEVICE)
        out = torch.full((stop - first, heads, head_dim), torch.nan, dtype=SHORT, device=DEVICE)
        return prompt_attention.attend(
            q[first:stop].contiguous(),
            blocks,
            starts.to(DEVICE),
            lens.to(DEVICE),
            tables.to(DEVICE),
            widths,
            k_cache,
            v_cache,
            out,
        )

    whole = attend(0, length)
    for size in (1, 7, 64, 100):
        for first in range(0, length, size):
            stop = min(first + size, length)
            assert same(attend(first, stop), whole[first:stop])


def test_an_embedding_takes_drawn_tokens() -> None:
    table = random(50, 40)
    tokens, sources, drawn = (
        torch.tensor(each, dtype=torch.int32, device=DEVICE) for each in ([3, 9, 0], [-1, 1, 0], [7, 8])
    )
    taken = torch.zeros_like(tokens)
    found = norm.embed(tokens, table, torch.full((3, 40), torch.nan, dtype=SHORT, device=DEVICE), sources, drawn, taken)
    assert torch.equal(found, table[[3, 8, 7]])
    assert taken.tolist() == [3, 8, 7]


def draw(logits: Tensor, temperatures: list[float], uniforms: list[float]) -> tuple[Tensor, Tensor]:
    space = sampling.SampleSpace(len(logits), logits.shape[1], DEVICE)
    tokens = torch.full((len(logits),), -1, dtype=torch.int32, device=DEVICE)
    peaks = torch.full((len(logits),), torch.nan, device=DEVICE)
    heat, noise = (torch.tensor(each, dtype=F32, device=DEVICE) for each in (temperatures, uniforms))
    sampling.draw(logits, heat, noise, tokens, peaks, space)
    return tokens, peaks


def test_greedy_draws_take_the_lowest_of_the_largest_and_report_logits_that_are_not_finite() -> None:
    logits = random(6, 10_000, dtype=F32)
    logits[0, [70, 9_000]] = 99.0
    logits[1, 5_000] = torch.nan
    logits[2] = -torch.inf
    logits[3, 4_096] = torch.inf
    tokens, peaks = draw(logits, [0.0] * 6, [0.0] * 6)
    assert tokens[[0, 4, 5]].tolist() == [70, *logits[4:].argmax(1).tolist()]
    assert peaks[[0, 4, 5]].tolist() == logits[[0, 4, 5]].amax(1).tolist()
    assert peaks[1:4].tolist() == [torch.inf, -torch.inf, torch.inf]


def test_draws_equal_the_reference_and_do_not_depend_on_other_rows() -> None:
    rng, count = Random(0), 64
    logits = random(count, 9_000, dtype=F32, scale=4.0)
    temperatures = [rng.choice([0.3, 1.0, 2.5]) for _ in range(count)]
    uniforms = [rng.random() for _ in range(count)]
    tokens, _ = draw(logits, temperatures, uniforms)
    for row in range(count):
        p = (logits[row].double() / temperatures[row]).softmax(0)
        low, high = (int(pick_by_cumulative(p.clone(), min(max(uniforms[row] + by, 0.0), 1.0))) for by in (-1e-5, 1e-5))
        assert low <= int(tokens[row]) <= high
        if row % 9 == 0:
            alone, _ = draw(logits[row : row + 1], temperatures[row : row + 1], uniforms[row : row + 1])
            assert int(alone) == int(tokens[row])
