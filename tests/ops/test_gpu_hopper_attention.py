"""On a Hopper GPU, attention of prompts has the bits of the decode kernel and of the kernel for other GPUs."""

from random import Random
from typing import NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from specialist.ops.reference import layers
from tests.native.device import DEVICE

pytest.importorskip("triton")
if DEVICE.type != "cuda" or torch.cuda.get_device_capability(DEVICE)[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from specialist.ops.gpu import attention, hopper, prompt_attention

ROWS = [(1, 1), (5, 700), (64, 64), (65, 130), (17, 1500), (333, 1000), (128, 4096), (3, 63), (200, 3333), (1, 2049)]
NO_TOKEN = 1 << 30


class Step(NamedTuple):
    """Rows of tokens with contexts before them, and blocks of queries of which the last have no token."""

    qkv: Tensor
    positions: Tensor
    owners: Tensor
    q: Tensor
    block_rows: Tensor
    block_firsts: Tensor
    starts: Tensor
    contexts: Tensor
    tables: Tensor
    widths: Tensor
    k_cache: Tensor
    v_cache: Tensor
    turns: Tensor

    def attend(self, window: int | None) -> Tensor:
        out = torch.full_like(self.q, torch.nan)
        return prompt_attention.attend(
            self.q, (self.block_rows, self.block_firsts), self.starts, self.contexts, self.tables, self.widths,
            self.k_cache, self.v_cache, out, window,
        )  # fmt: skip


def ints(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def step(
    rows: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, block_size: int, num_blocks: int = 160
) -> Step:
    """Return rows of (tokens, context). All slots that hold no token are NaN, also those of blocks in tables."""
    rng, generator = Random(len(rows)), torch.Generator(device=DEVICE).manual_seed(len(rows))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(torch.bfloat16)

    counts = [-(-context // block_size) for _, context in rows]
    ids = list(range(1, sum(counts) + 1))
    rng.shuffle(ids)
    tables = torch.zeros(len(rows), max(counts) + 3, dtype=torch.int32)
    k_cache, v_cache = (random(len(ids) + 2, block_size, kv_heads, head_dim) for _ in range(2))
    starts, positions, slots, owners = [0], list[int](), list[int](), list[int]()
    for row, (length, context) in enumerate(rows):
        mine = [ids.pop() for _ in range(counts[row])]
        tables[row, : len(mine)] = torch.tensor(mine)
        places = range(context - length, context)
        positions += places
        slots += [mine[place // block_size] * block_size + place % block_size for place in places]
        owners += [row] * length
        starts.append(starts[-1] + length)
        for cache in (k_cache, v_cache):
            cache[mine[-1], (context - 1) % block_size + 1 :] = torch.nan
    for cache in (k_cache, v_cache):
        cache[0], cache[-1] = torch.nan, torch.nan
    angles = torch.outer(torch.arange(8192.0), 10000.0 ** (-torch.arange(head_dim // 2) / (head_dim // 2)))
    turns = torch.stack((angles.cos(), angles.sin()), 1).to(DEVICE)
    qkv = random(starts[-1], (heads + 2 * kv_heads) * head_dim)
    q = torch.empty((starts[-1], heads, head_dim), dtype=qkv.dtype, device=DEVICE)
    attention.norm_rope_write(qkv, None, 1e-6, turns, ints(positions), ints(slots), q, k_cache, v_cache)
    edges = torch.tensor(starts, dtype=torch.int32)
    contexts = torch.tensor([context for _, context in rows], dtype=torch.int32)
    of_rows, of_firsts = prompt_attention.query_blocks(edges.numpy(), contexts.numpy(), heads // kv_heads)
    padding = num_blocks - len(of_rows)
    block_rows, block_firsts = ints([*of_rows, *[0] * padding]), ints([*of_firsts, *[NO_TOKEN] * padding])
    return Step(
        qkv, ints(positions), ints(owners), q, block_rows, block_firsts, edges.to(DEVICE), contexts.to(DEVICE),
        tables.to(DEVICE), ints([tables.shape[1]]), k_cache, v_cache, turns,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size", "window"),
    [
        (4, 4, 64, 16, None),
        (16, 8, 128, 16, None),
        (16, 8, 128, 16, 70),
        (32, 8, 128, 32, None),
        (8, 1, 64, 64, 1000),
        (8, 2, 64, 32, 130),
        (4, 4, 128, 64, None),
        (8, 1, 128, 128, None),
    ],
)
def test_a_token_has_the_bits_of_the_decode_kernel_and_of_the_kernel_for_other_gpus(
    heads: int, kv_heads: int, head_dim: int, block_size: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = step(ROWS, heads, kv_heads, head_dim, block_size)
    kernel = hopper.for_hopper("hopper_attention", given.q.device)
    assert kernel is not None, "the kernel does not work with this Triton"
    calls = Mock(wraps=kernel.attend)
    monkeypatch.setattr(kernel, "attend", calls)
    found = given.attend(window)
    assert found.isfinite().all(), "a value after a context was mixed, or a token was not computed"
    for _ in range(3):
        assert torch.equal(given.attend(window), found)
    assert calls.call_count == 4

    seen = layers.views(given.starts.cpu(), given.contexts.cpu(), given.tables.cpu(), block_size, window, DEVICE)
    expected = layers.attend(given.q, given.k_cache.nan_to_num(), given.v_cache.nan_to_num(), seen).double()
    assert (found.double() - expected).norm() / expected.norm() < 1.5e-2

    lasts = (given.starts[1:] - 1).tolist()
    picked = [*lasts, *Random(1).sample(range(len(found)), 54)]
    space = attention.AttentionSpace(len(picked), 8192, heads, kv_heads, head_dim, DEVICE)
    decoded = torch.full((len(picked), heads * head_dim), torch.nan, dtype=found.dtype, device=DEVICE)
    attention.decode(
        given.qkv[picked], None, 1e-6, given.turns, given.positions[picked], given.tables, given.widths,
        given.k_cache, given.v_cache, decoded, space,
        num_rows=len(picked), owners=given.owners[picked], window=window,
    )  # fmt: skip
    assert torch.equal(found.flatten(1)[picked], decoded)

    monkeypatch.setattr(prompt_attention, "for_hopper", lambda name, device: None)
    assert torch.equal(given.attend(window), found)


def test_a_captured_graph_computes_other_rows_than_those_it_was_captured_with() -> None:
    shape = 16, 8, 128, 16
    given, other = step([(700, 700)], *shape), step([(1, 900), (690, 1200), (9, 9)], *shape)
    given = given._replace(  # as large as the other's
        starts=ints([0, 700, 700, 700]),
        contexts=ints([700, 0, 0]),
        tables=torch.zeros_like(other.tables),
        k_cache=torch.zeros_like(other.k_cache),
        v_cache=torch.zeros_like(other.v_cache),
    )
    given.attend(None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = given.attend(None)
    for to, of in zip(given, other, strict=True):
        to.copy_(of)
    graph.replay()
    assert torch.equal(out, other.attend(None))
