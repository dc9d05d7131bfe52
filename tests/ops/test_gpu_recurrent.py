"""The kernels of recurrent layers compute what the references compute; a row's bits depend only on its tokens."""

import os
from itertools import pairwise
from math import inf
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specialist.ops.reference import recurrent as reference
from tests.native.device import DEVICE

pytest.importorskip("triton")
if DEVICE.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)

from specialist.ops.gpu import recurrent
from specialist.ops.gpu.recurrent import Rows, Shape, Weights

ON_GPU = DEVICE.type == "cuda"
TYPES = (torch.float32, torch.bfloat16) if ON_GPU else (torch.float32, torch.float16)
SHAPES = {
    "mamba": Shape(128 + 2 * 16, 4, 8, 16, 16, 1, 0.0, inf),
    "odd sizes": Shape(60 + 2 * 2 * 12, 4, 6, 10, 12, 2, 1e-30, inf),
    "limits": Shape(72 + 2 * 3 * 5, 2, 6, 12, 5, 3, 0.4, 0.9),
    "short convolution": Shape(48, 3),
    "narrow short convolution": Shape(40, 2),
}
WIDE = {
    "real": Shape(1536 + 2 * 128, 4, 24, 64, 128, 1, 0.0, inf),
    "large state": Shape(512 + 2 * 2 * 256, 4, 4, 128, 256, 2, 0.001, 0.1),
    "long short convolution": Shape(1024, 3),
}
ALL = {**SHAPES, **WIDE} if ON_GPU else SHAPES
LAYERS = 2
MARGIN = 8  # floats of NaN around every state


def numbers(*shape: int, seed: int, low: float | None = None, high: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if low is None:
        return torch.randn(shape, generator=generator).to(DEVICE)
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(DEVICE)


def weights_of(shape: Shape, *, biased: bool = True) -> Weights:
    conv = numbers(LAYERS, shape.channels, shape.width, seed=1)
    bias = numbers(LAYERS, shape.channels, seed=2) if biased else None
    if not shape.num_heads:
        return Weights(conv, bias)
    heads = (LAYERS, shape.num_heads)
    rate = -(16 ** numbers(*heads, seed=3, low=-2.0, high=1.0))
    norm = numbers(LAYERS, shape.inner_size, seed=6, low=0.5, high=1.5)
    return Weights(conv, bias, 2 * numbers(*heads, seed=4), rate, numbers(*heads, seed=5), norm)


class Run:
    """Rows of some tokens each, computed together from states that all begin alike."""

    def __init__(self, shape: Shape, weights: Weights, lengths: list[int], states: list[Tensor]) -> None:
        self.shape, self.weights = shape, weights
        self.starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        self.befores = [self._apart(state) for state in states]
        self.afters = [self._apart(torch.full_like(state, torch.nan)) for state in states]
        columns = LAYERS * (shape.channels + shape.num_heads)
        self.kept = [torch.full((max(1, length), columns), torch.nan, device=DEVICE) for length in lengths]
        self.anchor = torch.zeros(4, device=DEVICE)

    def _apart(self, state: Tensor) -> Tensor:
        whole = torch.full((len(state) + 2 * MARGIN,), torch.nan, device=DEVICE)
        whole[MARGIN:-MARGIN] = state
        return whole

    def rows(self, *, keeps: bool, padding: int = 0) -> Rows:
        """`padding`: tokens after the last row's, as a captured step has them."""
        states = [
            [recurrent.offset(part[MARGIN:], self.anchor) for part in (before, after)]
            + [recurrent.offset(kept, self.anchor) if keeps else 0]
            for before, after, kept in zip(self.befores, self.afters, self.kept, strict=True)
        ]
        owners = [row for row, (first, stop) in enumerate(pairwise(self.starts)) for _ in range(first, stop)]
        starts = torch.tensor(self.starts, dtype=torch.int32, device=DEVICE)
        owned = torch.tensor([*owners, *[0] * padding], dtype=torch.int32, device=DEVICE)
        return Rows(starts, owned, torch.tensor(states, device=DEVICE))

    def states(self) -> list[Tensor]:
        """Return the states after. The states before, and the memory around, must be as they were."""
        for whole in (*self.befores, *self.afters):
            assert whole[:MARGIN].isnan().all() and whole[-MARGIN:].isnan().all()
        return [after[MARGIN:-MARGIN] for after in self.afters]

    def compute(self, projected: list[Tensor], *, keeps: bool = False, padding: int = 0) -> list[Tensor]:
        """Return the outputs of both layers, each of which reads its own inputs."""
        rows, outputs = self.rows(keeps=keeps, padding=padding), []
        olds = [each.clone() for each in self.befores]
        for layer in range(LAYERS):
            x = functional.pad(projected[layer], (0, 0, 0, padding), value=1.0)
            own = self.weights.at(layer)
            kept = LAYERS * (self.shape.channels + self.shape.num_heads)
            if self.shape.num_heads:
                y = recurrent.mix_state_space(x, own, self.shape, rows, self.anchor, layer, kept)
            else:
                y = torch.full((1, len(x), self.shape.channels), torch.nan, dtype=x.dtype, device=DEVICE)
                recurrent.convolve(x, 0, own, self.shape, rows, self.anchor, y, layer, kept=kept, gated=True)
                y = y[0]
            outputs.append(y[: len(projected[layer])])
        assert all(
            torch.equal(each.nan_to_num(), old.nan_to_num()) for each, old in zip(self.befores, olds, strict=True)
        )
        return outputs


def projected_of(shape: Shape, count: int, dtype: torch.dtype) -> list[Tensor]:
    columns = shape.inner_size + shape.channels + shape.num_heads if shape.num_heads else 3 * shape.channels
    return [numbers(count, columns, seed=10 + layer).to(dtype) for layer in range(LAYERS)]


def expected(shape: Shape, weights: Weights, projected: list[Tensor], state: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return what the references, in float64, make of one row."""
    outputs, states = [], []
    parts = state.double().view(LAYERS, shape.layer_floats)
    for layer, x in enumerate(projected):
        conv_state = parts[layer, : shape.conv_floats].view(shape.width - 1, shape.channels)
        weight = weights.conv[layer].double()
        bias = None if weights.conv_bias is None else weights.conv_bias[layer].double()
        if not shape.num_heads:
            b, c, read = x.double().chunk(3, dim=1)
            y, last = reference.causal_conv(b * read, conv_state, weight, bias)
            outputs.append(c * y)
            states.append(last.flatten())
            continue
        floats = x.double()[:, shape.inner_size :]
        read, raw = torch.split(floats, [shape.channels, shape.num_heads], dim=1)
        mixed, last = reference.causal_conv(read, conv_state, weight, bias)
        shared = shape.num_groups * shape.state_size
        own, b, c = torch.split(functional.silu(mixed), [shape.inner_size, shared, shared], dim=1)
        assert weights.step_bias is not None and weights.rate is not None and weights.skip is not None
        y, after = reference.selective_scan(
            own.reshape(-1, shape.num_heads, shape.head_dim),
            reference.step_sizes(raw, weights.step_bias[layer].double(), shape.least_step, shape.most_step),
            b.reshape(-1, shape.num_groups, shape.state_size),
            c.reshape(-1, shape.num_groups, shape.state_size),
            weights.rate[layer].double(),
            weights.skip[layer].double(),
            parts[layer, shape.conv_floats :].view(shape.num_heads, shape.head_dim, shape.state_size).mT,
        )
        outputs.append(y.flatten(1))
        states.append(torch.cat((last.flatten(), after.mT.flatten())))
    return outputs, torch.cat(states)


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.isfinite().all(), "not everything was written"
    size = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, atol=tolerance * size, rtol=tolerance)


def state_of(shape: Shape, seed: int = 20) -> Tensor:
    return numbers(LAYERS * shape.layer_floats, seed=seed)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_kernels_equal_the_references(name: str, dtype: torch.dtype, biased: bool) -> None:
    shape, state = ALL[name], state_of(ALL[name])
    weights = weights_of(shape, biased=biased)
    for count in (1, 2, 3, 9, 70 if ON_GPU else 11):
        projected = projected_of(shape, count, dtype)
        run = Run(shape, weights, [count], [state])
        outputs, after = expected(shape, weights, projected, state)
        rounding = 1e-5 if shape.num_heads or dtype == torch.float32 else 1e-2
        for found, wanted in zip(run.compute(projected), outputs, strict=True):
            assert_near(found, wanted, rounding)
        assert_near(run.states()[0], after, 1e-5)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_a_row_has_the_same_bits_in_any_chunks_and_beside_any_rows(name: str, dtype: torch.dtype) -> None:
    shape, count = ALL[name], 300 if ON_GPU else 12
    weights, state, projected = weights_of(shape), state_of(ALL[name]), projected_of(shape, count, dtype)
    alone = Run(shape, weights, [count], [state])
    whole, last = alone.compute(projected), alone.states()[0]
    rng = Random(3)
    for trial in range(6 if ON_GPU else 3):
        held, done = state, 0
        while done < count:
            length = rng.choice([1, 1, 2, 3, 4, 5, 9, 64, count])
            stop = min(done + length, count)
            before, after = (rng.choice([0, 1, 2, 7]) for _ in range(2))
            others = numbers(before + after, projected[0].shape[1], seed=done + trial).to(dtype)
            step = [torch.cat((others[:before], x[done:stop], others[before:])).contiguous() for x in projected]
            run = Run(shape, weights, [before, stop - done, after], [state_of(shape, 50), held, state_of(shape, 51)])
            outputs = run.compute(step, padding=rng.choice([0, 0, 3]))
            for found, wanted in zip(outputs, whole, strict=True):
                assert torch.equal(found[before : before + stop - done], wanted[done:stop])
            held, done = run.states()[1].clone(), stop
        assert torch.equal(held, last)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_states_after_some_drafts_are_computed_again_from_kept_inputs(name: str, dtype: torch.dtype) -> None:
    shape, weights, lengths = ALL[name], weights_of(ALL[name]), [3, 5, 1]
    projected = projected_of(shape, sum(lengths), dtype)
    states = [state_of(shape, seed) for seed in (20, 21, 22)]
    verified = Run(shape, weights, lengths, states)
    verified.compute(projected, keeps=True)
    for row, length in enumerate(lengths):
        first = verified.starts[row]
        for count in range(1, length + 1):
            short = Run(shape, weights, [count], [states[row]])
            short.compute([x[first : first + count].contiguous() for x in projected])
            again = Run(shape, weights, [count], [states[row]])
            rows = again.rows(keeps=False)
            recurrent.replay(verified.kept[row][:count], weights, shape, rows, again.anchor)
            assert torch.equal(again.states()[0], short.states()[0])
            assert torch.equal(again.befores[0], verified.befores[row]) or again.befores[0].isnan().any()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("size", [24, 1536] if ON_GPU else [24])
@pytest.mark.parametrize("gate_first", [True, False], ids=["gate first", "gate last"])
def test_gated_norms_equal_the_reference_in_any_batch(
    gate_first: bool, size: int, groups: int, dtype: torch.dtype
) -> None:
    width = groups * size
    y, gate = numbers(70, width, seed=1), numbers(70, width + 40, seed=2).to(dtype)
    weight = numbers(width, seed=3, low=0.5, high=1.5)

    def run(count: int, gain: Tensor | None) -> Tensor:
        out = torch.full((count, width), torch.nan, dtype=dtype, device=DEVICE)
        return recurrent.gated_norm(y[:count], gate[:count], gain, groups, 1e-5, out, gate_first=gate_first)

    opened = gate[:, :width].double()
    found = run(70, weight)
    wanted = reference.gated_norm(y.double(), opened, weight.double(), groups, 1e-5, gate_first)
    assert_near(found, wanted, 1e-5 if dtype == torch.float32 else 1e-2)
    assert_near(run(70, None), y.double() * functional.silu(opened), 1e-5 if dtype == torch.float32 else 1e-2)
    for count in (1, 5, 33):
        assert torch.equal(run(count, weight), found[:count])


@pytest.mark.parametrize("raw", [-200.0, -40.0, -9.0, -1e-3, 0.0, 1e-3, 15.0, 40.0, 1e6])
def test_step_sizes_are_exact_at_every_magnitude(raw: float) -> None:
    shape = Shape(3, 2, 1, 1, 1, 1, 0.0, inf)
    zeros = torch.zeros(1, 1, device=DEVICE)
    weights = Weights(torch.zeros(1, 3, 2, device=DEVICE), None, zeros, -1 - zeros, zeros)
    run = Run(shape, weights, [1], [torch.zeros(shape.layer_floats, device=DEVICE)])
    steps = torch.full((1, 1, 2, 1), torch.nan, device=DEVICE)
    x = torch.tensor([[0.0, 0.0, 0.0, raw]], device=DEVICE)
    mixed = torch.empty(1, 1, 3, device=DEVICE)
    recurrent.convolve(x, 0, weights, shape, run.rows(keeps=False), run.anchor, mixed, 0, steps=steps)
    wanted = functional.softplus(torch.tensor(raw, dtype=torch.float64), threshold=1e3)
    torch.testing.assert_close(steps[0, 0, 0, 0].cpu().double(), wanted, rtol=1e-6, atol=1e-37)
    torch.testing.assert_close(steps[0, 0, 1, 0].cpu().double(), (-wanted).exp(), rtol=1e-5, atol=1e-37)
