"""A trained model writes the same story for any batch, chunk size, cache, preemption or neighbouring request."""

from pathlib import Path
from typing import Any

import pytest

from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.models.open import open_checkpoint
from specialist.scheduling.step import Preempted
from tests.native.device import DEVICE
from tests.native.fused import FusedReplica, fused_decoder
from tests.native.greedy_replica import GreedyReplica, ask

OPENINGS = (
    "Once upon a time",
    "Lily and Tom",
    "One day, a big dog",
    "The sun was",
    "Once upon a time, there was a cat",
)


@pytest.fixture(scope="module", params=[60, pytest.param(100, marks=pytest.mark.slow)])
def count(request: pytest.FixtureRequest) -> int:
    """Return the number of tokens of a story."""
    return int(request.param)


@pytest.fixture(scope="module")
def checkpoint(stories_dir: Path) -> Checkpoint:
    return open_checkpoint(stories_dir)


def openings(checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    vocabulary = checkpoint.vocabulary
    return [(vocabulary.bos_id or 0, *vocabulary.tokenizer.encode(text).ids) for text in OPENINGS]


def replica_of(engine: str, checkpoint: Checkpoint, folder: Path, num_blocks: int, block_size: int, **how: Any) -> Any:
    if engine == "fused":
        decoder = fused_decoder(checkpoint, folder, num_blocks=num_blocks, block_size=block_size)
        return FusedReplica(decoder, **how)
    return GreedyReplica(TorchDecoder(checkpoint, num_blocks=num_blocks, block_size=block_size, device=DEVICE), **how)


def stories(replica: Any, checkpoint: Checkpoint, count: int, prefix: str = "r") -> list[str]:
    replica.run(ask(f"{prefix}{i}", prompt, count) for i, prompt in enumerate(openings(checkpoint)))
    return [checkpoint.vocabulary.tokenizer.decode(list(replica.answer(f"{prefix}{i}"))) for i in range(len(OPENINGS))]


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint, count: int, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return each story generated alone, without a cache, with its opening computed in one step."""
    folder = tmp_path_factory.mktemp("expected")
    replica = replica_of("torch", checkpoint, folder, 64, 16, max_running=1, chunk=64, prefix_cache=False)
    return stories(replica, checkpoint, count)


def test_the_trained_model_writes_stories(expected: list[str]) -> None:
    assert "little girl named Lily" in expected[0]
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("engine", [pytest.param("torch", marks=pytest.mark.slow), "fused"])
@pytest.mark.parametrize(
    ("num_blocks", "block_size", "how"),
    [
        (64, 16, {"max_running": 1, "chunk": 64}),
        (64, 16, {"max_running": 8, "chunk": 64}),
        (64, 16, {"max_running": 8, "chunk": 3, "prefix_cache": False}),
        (128, 8, {"max_running": 3, "chunk": 5}),
        (20, 16, {"max_running": 8, "chunk": 16}),
    ],
    ids=["alone", "together", "in small chunks", "small blocks", "preempting"],
)
def test_a_story_does_not_depend_on_its_batch(
    engine: str,
    num_blocks: int,
    block_size: int,
    how: dict[str, Any],
    checkpoint: Checkpoint,
    count: int,
    expected: list[str],
    tmp_path: Path,
) -> None:
    replica = replica_of(engine, checkpoint, tmp_path, num_blocks, block_size, **how)
    assert stories(replica, checkpoint, count) == expected
    assert any(isinstance(event, Preempted) for event in replica.events) == (num_blocks == 20)
    assert stories(replica, checkpoint, count, "again ") == expected
