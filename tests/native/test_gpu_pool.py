"""On a GPU, a pool of measured size gives the same answers, and a card that others fill gives a smaller pool."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from specialist.engines.native.create import create_native
from specialist.engines.native.gpu_memory import MARGIN
from specialist.engines.native.settings import NativeSettings
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from tests.native.device import DEVICE
from tests.native.greedy_replica import GreedyReplica, ask
from tests.native.transformers_models import checkpoint_of, random_model

pytest.importorskip("triton")
if DEVICE.type != "cuda":
    pytest.skip("needs a GPU", allow_module_level=True)

GIB = 1 << 30


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return checkpoint_of(random_model("llama", hidden_size=512, head_dim=64, num_attention_heads=8).bfloat16())


def settle() -> None:
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def other_process(num_bytes: int) -> Iterator[None]:
    """Another process takes about this many bytes of the card."""
    program = "import sys, torch; x = torch.empty(int(sys.argv[1]) - (1 << 29), dtype=torch.uint8, device='cuda')\n"
    program += "print(len(x), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(num_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline()
        yield
        process.stdin.close()


def made(checkpoint: Checkpoint, share: float, kernel: str = "auto", num_blocks: int | None = None) -> TorchDecoder:
    settings = NativeSettings(
        Path(), device="cuda", dtype="bfloat16", memory_fraction=share, num_blocks=num_blocks,
        max_tokens=8192, max_running=128, kernel="float32" if kernel == "float32" else "auto",
    )  # fmt: skip
    decoder = create_native(checkpoint, settings).engine.decoder
    assert isinstance(decoder, TorchDecoder)
    return decoder


def answers(decoder: TorchDecoder) -> list[tuple[int, ...]]:
    replica = GreedyReplica(decoder, chunk=64)
    replica.run(ask(f"r{i}", range(1, 20 + 7 * i), 30) for i in range(6))
    return [replica.answer(f"r{i}") for i in range(6)]


def test_a_fitted_pool_changes_no_answer_and_keeps_to_its_share(checkpoint: Checkpoint) -> None:
    expected = answers(made(checkpoint, 1.0, num_blocks=200))
    settle()
    free, total = torch.cuda.mem_get_info()
    decoder = made(checkpoint, 0.06)
    assert answers(decoder) == expected
    taken = free - torch.cuda.mem_get_info()[0]
    pool = decoder.num_blocks * decoder.block_bytes
    assert 0.5 * 0.06 * total < pool < taken <= 0.06 * total, "the pool is small, or the replica exceeds its share"


@pytest.mark.parametrize("kernel", ["auto", "float32"])
def test_a_filled_card_gives_a_smaller_pool_and_then_a_refusal(checkpoint: Checkpoint, kernel: str) -> None:
    settle()
    whole = made(checkpoint, 0.08, kernel).num_blocks
    settle()
    free, _ = torch.cuda.mem_get_info()
    with other_process(free - 5 * GIB):
        small = made(checkpoint, 0.08, kernel)
        assert 2 <= small.num_blocks < whole
        assert torch.cuda.mem_get_info()[0] >= MARGIN // 2
        if kernel == "auto":
            assert answers(small) == answers(made(checkpoint, 0.08, num_blocks=200))
    del small
    settle()
    free, _ = torch.cuda.mem_get_info()
    with other_process(free - 3 * GIB // 4), pytest.raises(MemoryError, match="fit"):
        made(checkpoint, 0.08, kernel)
