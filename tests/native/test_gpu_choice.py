"""A GPU computes with the Triton kernels where these can be used; otherwise the choice says why not."""

import logging
from pathlib import Path
from typing import Literal

import pytest

from specialist.engines.native import create
from specialist.engines.native.create import KernelChoice, choose_kernel, usable_on_gpu
from specialist.engines.native.settings import KernelName, NativeSettings
from specialist.models.checkpoint import Checkpoint
from specialist.ops.cpu.library import BuildFailed
from tests.native.transformers_models import checkpoint_of, random_model

TRITON = KernelChoice("triton", "")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return checkpoint_of(random_model("llama"))


def test_a_gpu_gets_triton_unless_another_kernel_is_configured(checkpoint: Checkpoint) -> None:
    weight, nothing = checkpoint.weights["layers.0.gate"], BuildFailed("not built")
    assert choose_kernel(weight, nothing, "auto", "cuda").kernel == "triton"
    assert choose_kernel(weight, nothing, "float32", "cuda") == KernelChoice("float32", "configured")


@pytest.mark.parametrize("why", ["Triton is not installed", "heads of 8 elements"])
def test_without_it_pytorch_computes_and_says_why(
    checkpoint: Checkpoint, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(create, "why_no_triton", lambda *_: why)
    with caplog.at_level(logging.WARNING):
        choice = usable_on_gpu(checkpoint, settings("auto", "cuda"), TRITON)
    assert choice.kernel == "float32" and why in choice.why and why in caplog.text
    with pytest.raises(ValueError, match=why):
        usable_on_gpu(checkpoint, settings("triton", "cuda"), TRITON)


def test_a_cpu_cannot_be_configured_to_use_it(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="the device is cpu"):
        usable_on_gpu(checkpoint, settings("triton", "cpu"), TRITON)


def settings(kernel: KernelName | Literal["auto"], device: str) -> NativeSettings:
    return NativeSettings(cache=Path(), kernel=kernel, device=device)
