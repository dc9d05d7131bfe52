"""Products with quantised matrices have the bits of products with the same matrix in the model's type."""

import pytest
import torch
from torch import Tensor

from specialist.models.weights import Affine
from specialist.ops.gpu.packing import Matrix, Quantised, join, pack
from tests.native.device import DEVICE
from tests.ops.quantize import quantize

pytest.importorskip("triton")

from specialist.ops.gpu import low_rank, quantised
from tests.ops.test_gpu_kernels import ON_GPU, SHORT, error, random, same  # skips without a GPU or an interpreter
from tests.ops.test_gpu_low_rank import NUM_PAGES, STACKS, rows_of

COUNTS = (1, 2, 8, 13, 16, 24, 32, 50, 64, 100, 128, 200, 300) if ON_GPU else (1, 3, 16, 33, 130)
# [rows, columns]: of the 135M, 0.6B and 8B models. Sums over 1024 columns and more are in parts, but for large ones.
SHAPES = (
    [
        *[(960, 576), (576, 1536), (6144, 1024), (1024, 3072), (1024, 2048), (4096, 4096), (6144, 4096)],
        *[(28672, 4096), (4096, 14336), (151936, 1024)],
    ]
    if ON_GPU
    else [(96, 96), (34, 1024), (66, 576)]
)


def stored(rows: int, columns: int, bits: int, seed: int = 0) -> Quantised:
    """Return a matrix with scales of very different sizes."""
    sizes = random(rows, columns // 32, dtype=torch.float32, seed=seed + 1).exp2().repeat_interleave(32, 1)
    floats = (random(rows, columns, dtype=torch.float32, seed=seed) * sizes * columns**-0.5).cpu()
    packed = pack(quantize(floats, 4 if bits == 4 else 8))
    return packed._replace(words=packed.words.to(DEVICE), ranges=packed.ranges.to(DEVICE))


def multiply(
    x: Tensor, weight: Tensor | Quantised, *, gated: bool = False, room: bool = True, **options: object
) -> Tensor:
    rows = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.full((len(x), rows), torch.nan, dtype=x.dtype, device=DEVICE)
    workspace = quantised.Workspace(DEVICE, [weight] if room else [], x.dtype)
    quantised.multiply(x, weight, workspace, out, gated=gated, **options)  # type: ignore[arg-type]
    assert not workspace.arrived.any()
    return out


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_has_the_bits_of_one_with_the_matrix_in_the_models_type(shape: tuple[int, int], bits: int) -> None:
    rows, columns = shape
    weight, x = stored(rows, columns, bits), random(max(COUNTS), columns)
    whole = weight.dense(SHORT)
    bias, before = random(rows, seed=1), random(max(COUNTS), rows, seed=2)
    for count in COUNTS:
        assert same(
            multiply(x[:count], weight, bias=bias, residual=before[:count]),
            multiply(x[:count], whole, bias=bias, residual=before[:count]),
        ), f"{count} rows"
        gated = multiply(x[:count], weight, gated=True)
        assert same(gated, multiply(x[:count], whole, gated=True)), f"gated, {count} rows"
        if count > quantised.MOST_ROWS:
            assert same(
                multiply(x[:count], weight, room=False, bias=bias, residual=before[:count]),
                multiply(x[:count], whole, bias=bias, residual=before[:count]),
            )
    expected = x.double() @ whole.double().T + bias.double() + before.double()
    assert error(multiply(x, weight, bias=bias, residual=before), expected) < 8e-3


@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_adds_the_low_rank_terms_of_each_row(bits: int) -> None:
    rows, columns = (1536, 1024) if ON_GPU else (96, 1024)
    weight, count = stored(rows, columns, bits), max(COUNTS)
    x, a = random(count, columns), random(NUM_PAGES, 1, 16, columns, scale=columns**-0.5)
    b = random(NUM_PAGES, rows, 16, seed=2, scale=0.5)
    picked = [row % len(STACKS) for row in range(count)]
    for some in COUNTS if ON_GPU else (3, 130):
        own = rows_of(picked[:some])
        low = torch.zeros(some, 1, 16 * max(STACKS), dtype=SHORT, device=DEVICE)
        low_rank.shrink(x[:some], a, own, low, most_pages=4)
        terms = low_rank.Terms(b, low, own, (rows, rows))
        for room in (True, False):
            found = multiply(x[:some], weight, terms=terms, room=room)
            assert same(found, multiply(x[:some], weight.dense(SHORT), terms=terms)), f"{some} rows"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(50, 96), (50, 128), (17, 576), (33, 1024)], ids=str)
def test_weights_unpack_to_exactly_what_the_file_says(shape: tuple[int, int], bits: int) -> None:
    weight = stored(*shape, bits)
    expected = weight.affine().dense().to(SHORT)
    workspace = quantised.Workspace(DEVICE, [weight], SHORT)
    workspace.dense.fill_(torch.nan)
    assert torch.equal(quantised.unpack(weight, workspace), expected)
    tokens, sources, drawn = (
        torch.tensor(each, dtype=torch.int32, device=DEVICE) for each in ([3, 9, 0], [-1, 1, 0], [7, 8])
    )
    taken, out = torch.zeros_like(tokens), torch.full((3, shape[1]), torch.nan, dtype=SHORT, device=DEVICE)
    assert torch.equal(quantised.embed(tokens, weight, out, sources, drawn, taken), expected[[3, 8, 7]])
    assert taken.tolist() == [3, 8, 7]
    assert torch.equal(quantised.embed(tokens, weight, out), expected[[3, 9, 0]])


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_keeps_every_integer_and_range(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    q = torch.randint(0, 256, (9, 160 * bits // 8), dtype=torch.uint8, generator=generator)
    scale, minimum = torch.randint(-(1 << 15), 1 << 15, (2, 9, 5), dtype=torch.int16, generator=generator).view(
        torch.float16
    )
    before = Affine(4 if bits == 4 else 8, q, scale, minimum)
    after = pack(before).affine()
    assert torch.equal(after.q, before.q)
    for one, other in ((after.scale, scale), (after.minimum, minimum)):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_joined_matrices_have_the_rows_of_all() -> None:
    narrow, wide, floats = stored(5, 96, 4), stored(3, 96, 8), random(4, 96)
    cases: tuple[list[Matrix], ...] = ([narrow, narrow], [narrow, wide, narrow], [floats, narrow], [wide])
    for parts in cases:
        whole = join(parts)
        dense = [part.dense(SHORT) if isinstance(part, Quantised) else part for part in parts]
        found = whole.dense(SHORT) if isinstance(whole, Quantised) else whole
        assert torch.equal(found, torch.cat(dense))
        assert isinstance(whole, Quantised) == (floats is not parts[0])
