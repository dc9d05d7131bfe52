"""Matrix products of prompts have the same bits from every kernel, and as in decode steps."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.native.device import DEVICE

pytest.importorskip("triton")

from specialist.ops.gpu import hopper, linear, prompt_linear
from tests.ops.test_gpu_kernels import SHORT, product, random  # skips without a GPU or an interpreter

# Rows and columns of weights whose sums have several parts, and what is added.
CASES: dict[str, tuple[tuple[int, int], dict[str, bool]]] = {
    "plain": ((2048, 1024), {}),
    "bias": ((456, 2048), {"bias": True}),
    "residual": ((1024, 3072), {"residual": True}),
    "bias and residual": ((1000, 1024), {"bias": True, "residual": True}),
    "gated": ((6144, 1024), {"gated": True}),
    "gated with bias": ((912, 1024), {"gated": True, "bias": True}),
    "long": ((1024, 14336), {"residual": True}),  # as wide as in the 8B shape
}
COUNTS = (linear.MOST_SPREAD + 1, 256, 300, 2100)  # of rows; with the last, programs have several tiles each


@pytest.fixture
def kernel() -> ModuleType:
    if DEVICE.type != "cuda" or torch.cuda.get_device_capability(DEVICE)[0] != 9:
        pytest.skip("needs a Hopper GPU")
    found = hopper.for_hopper("hopper_linear", DEVICE)
    assert found is not None, "the kernel does not work with this Triton"
    return found


def operands(shape: tuple[int, int], count: int, *, bias: bool = False, residual: bool = False, gated: bool = False,
             dtype: torch.dtype = SHORT) -> tuple[Tensor, Tensor, dict[str, Any]]:  # fmt: skip
    rows, columns = shape
    x, weight = random(count, columns, dtype=dtype), random(rows, columns, dtype=dtype, scale=columns**-0.5)
    x[1], x[2] = 0.0, -0.0
    size = rows // 2 if gated else rows
    return x, weight, {
        "bias": random(rows, dtype=dtype, seed=1) if bias else None,
        "residual": random(count, size, dtype=dtype, seed=2) if residual else None,
        "gated": gated,
    }  # fmt: skip


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16)


def empty(x: Tensor, weight: Tensor, *, gated: bool) -> Tensor:
    return x.new_full((len(x), len(weight) // 2 if gated else len(weight)), torch.nan)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in CASES), ("gated with bias", torch.float16)], ids=str
)
def test_the_kernel_for_hopper_has_the_bits_of_the_others(kernel: ModuleType, name: str, dtype: torch.dtype) -> None:
    shape, added = CASES[name]
    x, weight, options = operands(shape, max(COUNTS), dtype=dtype, **added)
    sums, gated = linear.num_parts(weight), options["gated"]
    assert sums > 1
    tile = prompt_linear.choose_tile(sums, adds=options["residual"] is not None)
    for count in COUNTS:
        few = options | {"residual": None if options["residual"] is None else options["residual"][:count]}
        expected = prompt_linear.linear(
            x[:count], weight, empty(x[:count], weight, gated=gated), sums, tile=tile, **few
        )
        assert expected.isfinite().all()
        for _ in range(2):
            found = kernel.linear(x[:count], weight, empty(x[:count], weight, gated=gated), sums, **few)
            assert torch.equal(bits(found), bits(expected)), f"{count} rows"
    decoded = product(
        x[:100], weight, **options | {"residual": few["residual"][:100] if added.get("residual") else None}
    )
    assert torch.equal(bits(found[:100]), bits(decoded))


def test_a_result_may_replace_the_residual_and_rows_after_it_stay(kernel: ModuleType) -> None:
    x, weight, options = operands((1000, 2048), 300, residual=True)
    expected = kernel.linear(x, weight, empty(x, weight, gated=False), 4, **options)
    kept = torch.cat((options["residual"], random(100, 1000, seed=3)))
    after = kept[300:].clone()
    kernel.linear(x, weight, kept[:300], 4, residual=kept[:300])
    assert torch.equal(bits(kept[:300]), bits(expected))
    assert torch.equal(bits(kept[300:]), bits(after))


def test_a_captured_graph_computes_from_new_rows(kernel: ModuleType) -> None:
    x, weight, _ = operands((4096, 1024), 600)
    out, workspace = empty(x, weight, gated=False), linear.Workspace(DEVICE)
    linear.linear(x, weight, workspace, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        linear.linear(x, weight, workspace, out)
    x.copy_(random(*x.shape, seed=5))
    out.fill_(torch.nan)
    graph.replay()
    expected = prompt_linear.linear(
        x, weight, empty(x, weight, gated=False), 4, tile=prompt_linear.choose_tile(4, adds=False)
    )
    assert torch.equal(bits(out), bits(expected))


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device that seems to be a Hopper GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    hopper.for_hopper.cache_clear()
    yield torch.device("cuda", 0)
    hopper.for_hopper.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, failure: Exception | None) -> list[torch.device]:
    """Add a module `made_up` with a kernel, which fails if so told; return the devices on which it is tried."""
    tried = []

    def try_out(device: torch.device) -> None:
        tried.append(device)
        if failure is not None:
            raise failure

    module = ModuleType("made_up")
    monkeypatch.setattr(module, "try_out", try_out, raising=False)
    monkeypatch.setitem(sys.modules, "specialist.ops.gpu.made_up", module)
    return tried


def test_a_kernel_that_works_is_tried_once(
    on_hopper: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = install(monkeypatch, None)
    for _ in range(2):
        assert hopper.for_hopper("made_up", on_hopper) is sys.modules["specialist.ops.gpu.made_up"]
    assert tried == [on_hopper]
    assert not caplog.records


@pytest.mark.parametrize("failure", [AttributeError("no such part of Gluon"), ArithmeticError("not exact")], ids=str)
def test_a_kernel_that_fails_is_named_once_and_not_used(
    on_hopper: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    tried = install(monkeypatch, failure)
    for _ in range(2):
        assert hopper.for_hopper("made_up", on_hopper) is None
    assert tried == [on_hopper]
    (record,) = caplog.records
    assert "made_up" in record.message
    assert str(failure) in record.message


def test_a_kernel_that_found_no_memory_is_tried_again(
    on_hopper: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        hopper.for_hopper("made_up", on_hopper)
    install(monkeypatch, None)
    assert hopper.for_hopper("made_up", on_hopper) is sys.modules["specialist.ops.gpu.made_up"]
    assert not caplog.records


def test_a_triton_without_gluon_is_named_and_no_kernel_used(
    on_hopper: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "specialist.ops.gpu.hopper_linear", raising=False)
    monkeypatch.setitem(sys.modules, "triton.experimental.gluon", None)
    assert hopper.for_hopper("hopper_linear", on_hopper) is None
    assert "hopper_linear" in caplog.text


def test_another_gpu_and_no_gpu_try_nothing(
    on_hopper: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = install(monkeypatch, None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert hopper.for_hopper("made_up", on_hopper) is None
    assert hopper.for_hopper("made_up", torch.device("cpu")) is None
    assert not tried
    assert not caplog.records
