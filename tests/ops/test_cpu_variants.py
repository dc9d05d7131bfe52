"""The C++ kernels compute the same bits with any instruction set."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.models.demo import cache_directory
from specialist.models.weights import GROUP
from specialist.ops.cpu.library import build, load_library
from specialist.ops.cpu.linear import PackedLinear
from specialist.ops.cpu.packed_weights import pack_checkpoint
from specialist.ops.cpu.sampling import FusedSampler
from specialist.ops.reference.sampling import SampleRow
from tests.native.fused import FusedReplica, kernels
from tests.native.greedy_replica import ask
from tests.native.test_fused_decoder import SIZES, quantize_checkpoint
from tests.native.test_torch_decoder import prompts
from tests.native.transformers_models import checkpoint_of, random_model
from tests.ops.recurrent_rows import ConvRow, ScanRow, assert_same_bits, bits_of, run_gated_norm
from tests.ops.test_cpu_linear import weight_of
from tests.ops.test_cpu_sampler import WANTS
from tests.ops.test_sampling import FixedGuide

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Variant:
    machine: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """CPU features, spelled as in /proc/cpuinfo."""
    dot: bytes
    """The instruction set that the library reports."""


def _x86(flags: str, needs: str, dot: bytes) -> Variant:
    return Variant("x86_64", tuple(flags.split()), frozenset(needs.split()), dot)


AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl"
VARIANTS = {
    "avx512-vnni": _x86("-march=x86-64-v4 -mavx512vnni", f"{AVX512} avx512_vnni", b"avx512-vnni"),
    "avx512": _x86("-march=x86-64-v4", AVX512, b"avx512"),
    "avx2": _x86("-march=haswell", "avx2 fma f16c bmi1 bmi2 movbe abm", b"avx2"),
    "x86 without fma": _x86("-march=x86-64", "", b"portable"),
    "neon with dot products": Variant(
        "aarch64", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"}), b"neon-dotprod"
    ),
    "neon": Variant("aarch64", ("-march=armv8-a",), frozenset(), b"portable"),
}


def _cpu_features() -> frozenset[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next(line for line in lines if line.startswith(("flags", "Features"))).split())


def _runs_here(variant: Variant) -> bool:
    return variant.machine == platform.machine() and variant.needs <= _cpu_features()


@pytest.fixture(scope="module", params=[name for name in VARIANTS if _runs_here(VARIANTS[name])])
def variant(request: pytest.FixtureRequest) -> Any:
    """Return the library of a variant. It is cached between runs, separately for each source, compiler and set of
    flags."""
    wanted = VARIANTS[request.param]
    # The optimisation level changes no bit. The native build uses 3; 1 compiles fastest.
    library = load_library(build(cache_directory(), ("-O1", *wanted.flags)))
    assert library.octet_dot() == wanted.dot
    return library


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_products(bits: int, variant: Any) -> None:
    for rows, columns in ((1, GROUP), (40, 9 * GROUP), (16, 64 * GROUP)):
        weight = weight_of(rows, columns, bits)
        native, other = (PackedLinear(weight, library) for library in (kernels(), variant))
        for tokens in (1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 33):
            x = torch.randn(tokens, columns) ** 3
            x[0, :GROUP] = 0
            x[-1, -GROUP:] = 1e-38  # The reciprocal of this group's scale is infinite.
            assert native(x).isfinite().all()
            assert torch.equal(bits_of(native(x)), bits_of(other(x))), (rows, columns, tokens)


@pytest.mark.parametrize("bits", [4, 8])
def test_products_of_the_largest_integers(bits: Literal[4, 8], variant: Any) -> None:
    """With these values, the sum of two products does not fit into 16 bits."""
    weight = weight_of(16, 2 * GROUP, bits)
    assert not isinstance(weight, Tensor)
    weight.q.fill_(255)
    for x in (torch.full((3, 2 * GROUP), -3.0), torch.full((3, 2 * GROUP), 3.0), torch.randn(3, 2 * GROUP).sign()):
        assert torch.equal(bits_of(PackedLinear(weight, kernels())(x)), bits_of(PackedLinear(weight, variant)(x)))


def test_draws(variant: Any) -> None:
    logits = torch.randn(1, 4_099, generator=torch.Generator().manual_seed(1)) * 4
    allowed = FixedGuide(*range(0, 4_099, 3), vocab=4_099)
    asked = [SampleRow(want, seed, range(50), 9) for seed, want in enumerate(WANTS)]
    asked += [one._replace(guide=allowed) for one in asked]
    every = logits.expand(len(asked), -1)
    assert FusedSampler(variant)(every, asked) == FusedSampler(kernels())(every, asked)


def test_recurrent_layers(variant: Any) -> None:
    for width in range(2, 9):
        for silu in (False, True):
            conv = ConvRow(5 * width + 48, width, 7, silu, biased=silu)
            assert_same_bits(conv.run(variant), conv.run(kernels()))
    for head_dim in (3, 16, 37, 64, 80):
        for state_size in (1, 7, 128):
            scan = ScanRow(4, head_dim, state_size, 2, 70, low=1e-3)
            assert_same_bits(scan.run(variant), scan.run(kernels()))
    y, gate, weight = torch.randn(3, 4, 6 * 43)
    for gate_first in (False, True):
        norm = (y, gate, weight[0], 6, 1e-5, gate_first)
        assert torch.equal(bits_of(run_gated_norm(variant, *norm)), bits_of(run_gated_norm(kernels(), *norm)))


DECODERS = {
    "4 bits": ("llama", 4, "float32", 16),
    "8 bits, half cache": ("qwen3", 8, "float16", 8),
    "4 bits, half cache": ("mistral", 4, "float16", 24),
    "float32": ("qwen2", 32, "float32", 3),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_whole_decoder(name: str, variant: Any, tmp_path: Path) -> None:
    """The test covers embedding, norms, rope, paged attention and silu. Prompts are computed in chunks of several
    sizes, then tokens one at a time."""
    family, bits, kv_dtype, block_size = DECODERS[name]
    changes = {"qwen3": {"head_dim": 24}, "mistral": {"sliding_window": 24}}.get(family, {})
    model = random_model(family, **SIZES, **changes)
    checkpoint = checkpoint_of(model) if bits == 32 else quantize_checkpoint(model, 8 if bits == 8 else 4)
    prepared = pack_checkpoint(checkpoint, tmp_path)

    def logits(library: Any) -> list[Tensor]:
        settings: Any = {"num_blocks": 600 // block_size, "block_size": block_size, "kv_dtype": kv_dtype}
        decoder = FusedDecoder(checkpoint.config, prepared, library, max_tokens=256, threads=2, **settings)
        replica = FusedReplica(decoder, chunk=24)
        replica.run(ask(f"r{i}", prompt, 8) for i, prompt in enumerate(prompts(4)))
        return [replica.logits(f"r{i}") for i in range(4)]

    for one, other in zip(logits(kernels()), logits(variant), strict=True):
        assert one.isfinite().all()
        assert torch.equal(bits_of(one), bits_of(other))
