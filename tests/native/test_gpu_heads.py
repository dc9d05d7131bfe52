"""Heads as the kernels of a GPU take them compute what heads as the model has them compute."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specialist.models.checkpoint import ModelConfig, StateSpace
from specialist.ops.reference import layers
from tests.native.transformers_models import checkpoint_of, random_model

pytest.importorskip("triton")

from specialist.engines.native.gpu_hybrid import arrange_heads

COUNT = 7


def config_of(head_dim: int, rotary_dim: int | None) -> ModelConfig:
    mamba = StateSpace(num_heads=4, head_dim=16, state_size=16, num_groups=1, width=4)
    plain = checkpoint_of(random_model("llama")).config
    return replace(plain, num_heads=6, num_kv_heads=2, head_dim=head_dim, rotary_dim=rotary_dim, ssm=mamba)


def split(qkv: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
    sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    return torch.split(qkv.view(COUNT, sum(sizes), -1), sizes, dim=1)


def scores_and_mixed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores, scaled by the size of these heads, and the values that they mix."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    return scores, torch.einsum("hts,shd->thd", scores.softmax(-1), v)


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "size"),
    [(32, None, 32), (64, 32, 64), (64, 0, 64), (8, None, 32), (8, 4, 32), (8, 0, 32), (14, 6, 32), (160, None, 256),
     (160, 0, 256)],
)  # fmt: skip
def test_arranged_heads_have_the_scores_and_values_of_the_models_heads(
    head_dim: int, rotary_dim: int | None, size: int
) -> None:
    config = config_of(head_dim, rotary_dim)
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(COUNT, config.q_size + 2 * config.kv_size, generator=generator)
    frequencies, factor = layers.inverse_frequencies(config)
    cos, sin = layers.cos_sin(torch.arange(COUNT) * 3, frequencies, factor)
    q, k, v = split(qkv, config)
    expected = scores_and_mixed(layers.rotate(q, cos, sin), layers.rotate(k, cos, sin), v)

    heads = arrange_heads(config, torch.device("cpu"))
    assert heads.size == size
    turns = heads.turns(cos, sin)
    assert turns.shape == (COUNT, 2, size // 2)
    wide_cos, wide_sin = turns[:, None, 0], turns[:, None, 1]
    arranged = heads.arrange(qkv)
    assert arranged.shape == (COUNT, (config.num_heads + 2 * config.num_kv_heads) * size)
    q, k, v = split(arranged, config)
    q, k = (layers.rotate(each, wide_cos, wide_sin) for each in (q, k))
    scores, mixed = scores_and_mixed(q, k, v)
    torch.testing.assert_close(scores, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(heads.own(mixed.flatten(1), head_dim), expected[1].flatten(1), atol=1e-5, rtol=1e-5)
