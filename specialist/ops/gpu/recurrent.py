"""Layers that carry a state from token to token: causal convolution, selective scan, gated norm. See the reference.

A token's arithmetic is the same in every call: the state is advanced by one token after the other, in tiles whose shape
the model alone decides. One kernel therefore computes prompts, drafts and decode steps, of any number of rows; rows,
heads and columns of a state run side by side.

A row's state is 4 * offset floats after an anchor, any tensor of the device. All states of a model have the same parts:
for each recurrent layer, the last inputs of its convolution, then the scan's [heads, head size, state size].
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu.launch import EXACT


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    """log(1 + exp(x)), to the last bits also where it is small."""
    power = tl.exp(-tl.abs(x))
    one = 1.0 + power
    rest = one - 1.0
    small = tl.where(rest == 0.0, power, tl.log(one) * (power / tl.where(rest == 0.0, 1.0, rest)))
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + small


@triton.jit
def _part(anchor, states, row, index, layer, LAYER: tl.constexpr):
    """Return where the row's state before (0) or after (1) the step keeps this layer."""
    return anchor + tl.load(states + row * 3 + index) * 4 + layer.to(tl.int64) * LAYER


@triton.jit(do_not_specialize=["first", "num_tokens"])
def _convolve(
    x, weight, bias, step_bias, rate, starts, owners, states, anchor, out, steps, low, high, first, num_tokens,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr, COLUMN: tl.constexpr,
    NEXT: tl.constexpr, LAYER: tl.constexpr, KEPT: tl.constexpr, SILU: tl.constexpr, GATED: tl.constexpr,
    WRITES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token, BLOCK channels or heads, and one layer, counted from `first`. x: [T, COLUMNS], whose inputs begin at
    COLUMN, and NEXT columns further for each layer. GATED: each input is the product of two columns, and each output
    is multiplied by a third. KEPT: the floats of a token in a row's kept inputs."""
    token, index = tl.program_id(0), tl.program_id(2)
    row = tl.load(owners + token)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    if (token < begin) | (token >= end):
        return
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    layer = first + index
    kept = tl.load(states + row * 3 + 2)
    kept_at = anchor + kept * 4 + (token - begin).to(tl.int64) * KEPT + layer * (CHANNELS + HEADS)
    here = x + token.to(tl.int64) * COLUMNS + COLUMN + index * NEXT
    if tl.program_id(1) < blocks:
        channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        exists = channel < CHANNELS
        before = _part(anchor, states, row, 0, layer, LAYER)
        after = _part(anchor, states, row, 1, layer, LAYER)
        total = tl.zeros((BLOCK,), tl.float32)
        if bias is not None:
            total += tl.load(bias + index * CHANNELS + channel, mask=exists, other=0.0)
        own = total
        for tap in tl.static_range(WIDTH):
            is_new = token + tap >= begin + (WIDTH - 1)
            at = here + (tap - WIDTH + 1) * COLUMNS + channel
            own = tl.load(at, mask=exists & is_new, other=0.0).to(tl.float32)
            if GATED:
                own *= tl.load(at + 2 * CHANNELS, mask=exists & is_new, other=0.0).to(tl.float32)
            if tap < WIDTH - 1:
                old = tl.load(before + (tap + token - begin) * CHANNELS + channel, mask=exists & ~is_new, other=0.0)
                own = tl.where(is_new, own, old)
            total += tl.load(weight + (index * CHANNELS + channel) * WIDTH + tap, mask=exists, other=0.0) * own
        if kept != 0:
            tl.store(kept_at + channel, own, mask=exists)
        if token + WIDTH > end:
            tl.store(after + (WIDTH - 1 - end + token) * CHANNELS + channel, own, mask=exists & (token + WIDTH > end))
        if token == begin:
            for place in tl.static_range(WIDTH - 1):  # a row shorter than the state moves it
                moved = exists & (place + end - begin < WIDTH - 1)
                value = tl.load(before + (place + end - begin) * CHANNELS + channel, mask=moved, other=0.0)
                tl.store(after + place * CHANNELS + channel, value, mask=moved)
        if WRITES:
            if SILU:
                total = _silu(total)
            if GATED:
                total *= tl.load(here + CHANNELS + channel, mask=exists, other=0.0).to(tl.float32)
            to = (index.to(tl.int64) * num_tokens + token) * CHANNELS + channel
            tl.store(out + to, total.to(out.dtype.element_ty), mask=exists)
    elif HEADS > 0:
        head = (tl.program_id(1) - blocks) * BLOCK + tl.arange(0, BLOCK)
        exists = head < HEADS
        raw = tl.load(here + CHANNELS + head, mask=exists, other=0.0).to(tl.float32)
        if kept != 0:
            tl.store(kept_at + CHANNELS + head, raw, mask=exists)
        step = _softplus(raw + tl.load(step_bias + index * HEADS + head, mask=exists, other=0.0))
        step = tl.maximum(step, low, propagate_nan=tl.PropagateNan.ALL)
        step = tl.minimum(step, high, propagate_nan=tl.PropagateNan.ALL)
        decay = tl.exp(step * tl.load(rate + index * HEADS + head, mask=exists, other=0.0))
        to = (index.to(tl.int64) * num_tokens + token) * (2 * HEADS) + head
        tl.store(steps + to, step, mask=exists)
        tl.store(steps + to + HEADS, decay, mask=exists)


@triton.jit
def _read(mixed, steps, token, head, group, p, n, HEADS: tl.constexpr, SIZE: tl.constexpr, STATE: tl.constexpr,
          GROUPS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Return what a token adds to a state: x [P], b and c [N], its step size and decay."""
    own = mixed + token * CHANNELS
    shared = own + HEADS * SIZE + group * STATE + n
    x = tl.load(own + head * SIZE + p, mask=p < SIZE, other=0.0)
    b = tl.load(shared, mask=n < STATE, other=0.0)
    c = tl.load(shared + GROUPS * STATE, mask=n < STATE, other=0.0)
    at_step = steps + token * (2 * HEADS) + head
    return x, b, c, tl.load(at_step), tl.load(at_step + HEADS)


@triton.jit
def _advance(state, read, straight, out, token, head, p, HEADS: tl.constexpr, SIZE: tl.constexpr, WRITES: tl.constexpr):
    """Return the state after a token. Store what the token reads from it."""
    x, b, c, step, decay = read
    state = tl.fma(state, decay, (step * x)[:, None] * b[None, :])
    if WRITES:
        y = tl.sum(state * c[None, :], axis=1) + straight * x
        tl.store(out + token * (HEADS * SIZE) + head * SIZE + p, y, mask=p < SIZE)
    return state


@triton.jit(do_not_specialize=["first", "num_tokens"])
def _scan(
    mixed, steps, skip, starts, states, anchor, out, first, num_tokens,
    HEADS: tl.constexpr, SIZE: tl.constexpr, STATE: tl.constexpr, GROUPS: tl.constexpr, CHANNELS: tl.constexpr,
    CONV: tl.constexpr, LAYER: tl.constexpr, WRITES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One row, BLOCK_P columns of one head's state, and one layer. AHEAD tokens are read before those in front of them
    are computed."""
    row, index = tl.program_id(0), tl.program_id(2)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    if begin >= end:
        return
    parts: tl.constexpr = (SIZE + BLOCK_P - 1) // BLOCK_P
    head = tl.program_id(1) // parts
    p = tl.program_id(1) % parts * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    group = head // (HEADS // GROUPS)
    layer = first + index
    at = CONV + head * (STATE * SIZE) + p[:, None] * STATE + n[None, :]
    exists = (p < SIZE)[:, None] & (n < STATE)[None, :]
    state = tl.load(_part(anchor, states, row, 0, layer, LAYER) + at, mask=exists, other=0.0)
    earlier = index.to(tl.int64) * num_tokens
    straight = tl.load(skip + index * HEADS + head)
    whole = begin + (end - begin) // AHEAD * AHEAD
    if whole > begin:
        ready = ()
        for each in tl.static_range(AHEAD):
            token = earlier + (begin + each)
            ready = ready + (_read(mixed, steps, token, head, group, p, n, HEADS, SIZE, STATE, GROUPS, CHANNELS),)
        for done in tl.range(begin, whole, AHEAD):
            coming = ()
            for each in tl.static_range(AHEAD):
                token = earlier + tl.minimum(done + (AHEAD + each), end - 1)
                coming = coming + (_read(mixed, steps, token, head, group, p, n, HEADS, SIZE, STATE, GROUPS, CHANNELS),)
            for each in tl.static_range(AHEAD):
                state = _advance(
                    state, ready[each], straight, out, earlier + (done + each), head, p, HEADS, SIZE, WRITES
                )
            ready = coming
    for last in tl.range(whole, end):
        read = _read(mixed, steps, earlier + last, head, group, p, n, HEADS, SIZE, STATE, GROUPS, CHANNELS)
        state = _advance(state, read, straight, out, earlier + last, head, p, HEADS, SIZE, WRITES)
    tl.store(_part(anchor, states, row, 1, layer, LAYER) + at, state, mask=exists)


@triton.jit
def _gated_norm(
    y, gate, weight, out, eps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, NORM: tl.constexpr, FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One token, and one group of SIZE columns. The gate is in the first columns of rows of COLUMNS."""
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    each = tl.arange(0, BLOCK)
    exists = each < SIZE
    column = group * SIZE + each
    values = tl.load(y + token * (SIZE * GROUPS) + column, mask=exists, other=0.0)
    opened = _silu(tl.load(gate + token * COLUMNS + column, mask=exists, other=0.0).to(tl.float32))
    if FIRST:
        values *= opened
    if NORM:
        values *= 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / SIZE + eps)
        values *= tl.load(weight + column, mask=exists, other=0.0)
    if not FIRST:
        values *= opened
    tl.store(out + token * (SIZE * GROUPS) + column, values.to(out.dtype.element_ty), mask=exists)


class Rows(NamedTuple):
    """The rows of a step, on the device. A row without tokens is left alone, and so is a token outside its row."""

    starts: Tensor  # int32 [R + 1]
    owners: Tensor  # int32 [T], the tokens' rows
    states: Tensor  # int64 [R, 3]: offsets of the state before, the state after, and kept inputs; 0: not kept


class Shape(NamedTuple):
    """What all recurrent layers of a model have in common."""

    channels: int
    width: int
    num_heads: int = 0  # 0: the layers have only a convolution
    head_dim: int = 0
    state_size: int = 0
    num_groups: int = 1
    least_step: float = 0.0
    most_step: float = 0.0

    @property
    def conv_floats(self) -> int:
        return (self.width - 1) * self.channels

    @property
    def layer_floats(self) -> int:
        return self.conv_floats + self.num_heads * self.head_dim * self.state_size

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim


class Weights(NamedTuple):
    """Those of all recurrent layers of a model, in float32; the last four only of state spaces."""

    conv: Tensor  # [L, channels, width]
    conv_bias: Tensor | None  # [L, channels]
    step_bias: Tensor | None = None  # [L, heads]
    rate: Tensor | None = None  # [L, heads], negative
    skip: Tensor | None = None  # [L, heads]
    norm: Tensor | None = None  # [L, heads * head size]

    def at(self, layer: int) -> "Weights":
        """Return those of one layer."""
        others = (None if each is None else each[layer : layer + 1] for each in self[1:])
        return Weights(self.conv[layer : layer + 1], *others)


class Tile(NamedTuple):
    block_p: int
    warps: int
    ahead: int


def choose_tile(shape: Shape, num_rows: int) -> Tile:
    """Return the tile of a scan. The rows decide only how many tokens are read ahead, which changes no sum: a single
    row leaves registers and time for more."""
    most = max(1, _MOST_AHEAD // triton.next_power_of_2(shape.state_size))
    return Tile(min(4, triton.next_power_of_2(shape.head_dim)), 1, min(8 if num_rows == 1 else 2, most))


_MOST_AHEAD = 1024  # elements of a state in all tokens that are read ahead


_BLOCK = 256  # channels of a program of `_convolve`


def offset(memory: Tensor, anchor: Tensor) -> int:
    """Return where the memory is, as kernels take it. Raises ValueError if it is not aligned."""
    distance = memory.data_ptr() - anchor.data_ptr()
    if distance % 16:
        raise ValueError(f"memory at {memory.data_ptr():#x} is not aligned with {anchor.data_ptr():#x}")
    return distance // 16


def convolve(
    x: Tensor,
    column: int,
    weights: Weights,
    shape: Shape,
    rows: Rows,
    anchor: Tensor,
    out: Tensor,
    first: int,
    *,
    steps: Tensor | None = None,
    kept: int = 0,
    gated: bool = False,
    replays: bool = False,
) -> None:
    """Do `reference.recurrent.causal_conv` over inputs that begin at a column of x [T, columns], from the states of
    `rows`, for the layers of `weights`, the first of which is the model's recurrent layer `first`. Write the states
    after, and to `out` [L, T, channels] the results: after silu, for a state space; `gated`: of the products of the
    first and the last third of x, times the second. `steps` [L, T, 2, heads] gets the step sizes and decays, from the
    columns after the inputs. `kept`: the floats of a token in kept inputs. `replays`: x has the inputs of all layers,
    in order, and the results of a convolution alone are not needed."""
    num_layers, heads = len(weights.conv), shape.num_heads
    blocks = triton.cdiv(shape.channels, _BLOCK) + triton.cdiv(heads, _BLOCK)
    launch: Any = _convolve[(len(x), blocks, num_layers)]
    launch(
        x, weights.conv, weights.conv_bias, weights.step_bias, weights.rate, rows.starts, rows.owners, rows.states,
        anchor, out, steps, float(shape.least_step), float(shape.most_step), first, len(x),
        CHANNELS=shape.channels, WIDTH=shape.width, HEADS=heads, COLUMNS=x.shape[1], COLUMN=column,
        NEXT=shape.channels + heads if replays else 0, LAYER=shape.layer_floats, KEPT=kept, SILU=heads > 0,
        GATED=gated, WRITES=heads > 0 or not replays, BLOCK=_BLOCK, num_warps=4, **EXACT,
    )  # fmt: skip


def scan(
    mixed: Tensor,
    steps: Tensor,
    weights: Weights,
    shape: Shape,
    rows: Rows,
    anchor: Tensor,
    out: Tensor | None,
    first: int,
    tile: Tile | None = None,
) -> None:
    """Do `reference.recurrent.selective_scan` over what `convolve` wrote, from the states of `rows`. Write the states
    after, and to `out` float32 [L, T, heads * head size], if it is given, the results."""
    block_p, warps, ahead = tile or choose_tile(shape, len(rows.states))
    num_layers, num_tokens, _ = mixed.shape
    programs = shape.num_heads * triton.cdiv(shape.head_dim, block_p)
    launch: Any = _scan[(len(rows.states), programs, num_layers)]
    launch(
        mixed, steps, weights.skip, rows.starts, rows.states, anchor, out, first, num_tokens,
        HEADS=shape.num_heads, SIZE=shape.head_dim, STATE=shape.state_size, GROUPS=shape.num_groups,
        CHANNELS=shape.channels, CONV=shape.conv_floats, LAYER=shape.layer_floats, WRITES=out is not None,
        BLOCK_N=triton.next_power_of_2(shape.state_size), BLOCK_P=block_p, AHEAD=ahead, num_warps=warps, **EXACT,
    )  # fmt: skip


def gated_norm(
    y: Tensor, gate: Tensor, weight: Tensor | None, groups: int, eps: float, out: Tensor, *, gate_first: bool
) -> Tensor:
    """The same as `reference.recurrent.gated_norm`, for y float32 [T, size], the first columns of `gate`, and `out`
    [T, size]. Without a weight, only the gate is applied."""
    size = y.shape[1] // groups
    launch: Any = _gated_norm[(len(y), groups)]
    launch(
        y, gate, weight, out, eps,
        SIZE=size, GROUPS=groups, COLUMNS=gate.shape[1], NORM=weight is not None, FIRST=gate_first,
        BLOCK=triton.next_power_of_2(size), num_warps=4, **EXACT,
    )  # fmt: skip
    return out


def mix_state_space(
    projected: Tensor, weights: Weights, shape: Shape, rows: Rows, anchor: Tensor, first: int, kept: int
) -> Tensor:
    """Return float32 [T, heads * head size]: what one layer's convolution and scan make of `projected` [T, columns],
    which begins with the gate."""
    count, device = len(projected), projected.device
    mixed = torch.empty((1, count, shape.channels), device=device)
    steps = torch.empty((1, count, 2, shape.num_heads), device=device)
    y = torch.empty((1, count, shape.inner_size), device=device)
    convolve(projected, shape.inner_size, weights, shape, rows, anchor, mixed, first, steps=steps, kept=kept)
    scan(mixed, steps, weights, shape, rows, anchor, y, first)
    return y[0]


def replay(inputs: Tensor, weights: Weights, shape: Shape, rows: Rows, anchor: Tensor) -> None:
    """Write the states after tokens whose inputs of all layers, [T, columns], were kept: the bits that computing these
    tokens left."""
    num_layers, count, heads = len(weights.conv), len(inputs), shape.num_heads
    size = (num_layers, count, shape.channels) if heads else (0,)
    mixed = torch.empty(size, device=inputs.device)
    steps = torch.empty((num_layers, count, 2, heads), device=inputs.device) if heads else None
    convolve(inputs, 0, weights, shape, rows, anchor, mixed, 0, steps=steps, replays=True)
    if steps is not None:
        scan(mixed, steps, weights, shape, rows, anchor, None, 0)
