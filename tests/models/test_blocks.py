"""Every block format decodes as in llama.cpp."""

import numpy as np
import pytest
import torch

from specialist.models.gguf_reader import TENSOR_TYPES, GgufTensor, read_scales, read_weight, requantize
from specialist.models.weights import GROUP, Affine, dense
from tests.models.gguf_writer import Blob, random_blob
from tests.models.naive_blocks import dequantize

BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
SHAPE = (24, 512)


def stored(blob: Blob) -> GgufTensor:
    return GgufTensor(BY_NAME[blob.kind], blob.shape, np.frombuffer(bytearray(blob.data), np.uint8))


def made(kind: str, seed: int) -> tuple[Affine, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    blob = random_blob(kind, SHAPE, np.random.default_rng(seed))
    weight = read_weight(stored(blob))
    assert isinstance(weight, Affine)
    assert weight.shape == SHAPE
    return weight, dequantize(kind, blob.data, SHAPE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_a_block_with_one_scale_comes_over_exactly(kind: str, bits: int, seed: int) -> None:
    weight, expected = made(kind, seed)
    assert weight.bits == bits
    scale = weight.scale.double().repeat_interleave(GROUP, dim=1)
    minimum = weight.minimum.double().repeat_interleave(GROUP, dim=1)
    assert np.array_equal((scale * weight.integers() + minimum).numpy(), expected)


@pytest.mark.parametrize("seed", range(3))
def test_q4_k_is_off_by_less_than_a_hundredth_of_a_step(seed: int) -> None:
    weight, expected = made("Q4_K", seed)
    step = weight.scale.double().abs().repeat_interleave(GROUP, dim=1).numpy()
    extent = weight.minimum.double().abs().repeat_interleave(GROUP, dim=1).numpy()
    error = np.abs(weight.dense().double().numpy() - expected)
    assert (error <= 0.01 * step + 2**-11 * extent).all()


@pytest.mark.parametrize("seed", range(3))
def test_q6_k_is_off_by_at_most_half_a_255th_of_its_groups_range(seed: int) -> None:
    weight, expected = made("Q6_K", seed)
    groups = expected.reshape(-1, GROUP)
    span = np.ptp(groups, axis=1, keepdims=True)
    error = np.abs(weight.dense().double().numpy().reshape(-1, GROUP) - groups)
    smallest_half = 2.0**-24
    assert (error <= 0.501 * (span / 255 + smallest_half)).all()
    assert np.sqrt((error**2).mean() / (groups**2).mean()) < 0.005


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_are_a_view_of_the_file(kind: str) -> None:
    blob = stored(random_blob(kind, (3, 5), np.random.default_rng(0)))
    weight = read_weight(blob)
    assert isinstance(weight, torch.Tensor)
    assert weight.data_ptr() == blob.data.ctypes.data
    assert weight.shape == (3, 5)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("bad", [np.inf, np.nan, 65504.0])
def test_a_scale_that_no_half_can_hold_shows_in_the_scales(kind: str, bad: float) -> None:
    blob = random_blob(kind, (4, 256), np.random.default_rng(0))
    raw = np.frombuffer(bytearray(blob.data), np.uint8)
    at = 208 if kind == "Q6_K" else 0
    raw[at : at + 2] = np.array([bad], np.float16).view(np.uint8)
    finite = all(bool(part.isfinite().all()) for part in read_scales(GgufTensor(BY_NAME[kind], (4, 256), raw)))
    assert finite == (kind == "Q4_1" and bad == 65504.0)


def test_requantising_a_constant_group_keeps_it() -> None:
    values = np.full((2, GROUP), 0.5, np.float32)
    assert torch.equal(dense(requantize(values, 2)), torch.full((2, GROUP), 0.5))
