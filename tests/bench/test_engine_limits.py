from dataclasses import replace

import pytest
import torch

from bench.peers.octet_runner import least_bytes, mean_seconds, timed_read
from octet.clock import ManualClock
from specialist.models.checkpoint import Architecture
from specialist.models.weights import Affine, Weight
from tests.bench.test_peers_hf_directory import tiny


def test_mean_is_the_time_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("bench.peers.octet_runner.perf_counter", clock.now)
    assert mean_seconds(lambda: clock.sleep(0.03)) == pytest.approx(0.03)


def test_reading_more_takes_longer() -> None:
    small, large = timed_read(2**14), timed_read(2**26)
    assert (small.nbytes, large.nbytes) == (2**14, 2**26)
    assert large.seconds > 10 * small.seconds


def affine(minimum: float) -> Affine:
    scale = torch.full((96, 2), 0.5, dtype=torch.float16)
    return Affine(4, torch.zeros(96, 32, dtype=torch.uint8), scale, scale * minimum)


@pytest.mark.parametrize(
    ("weight", "nbytes"),
    [(torch.zeros(96, 64), 96 * 64 * 4), (affine(-8.0), 96 * 32 + 96 * 4), (affine(-7.0), 96 * 32 + 2 * 96 * 4)],
    ids=["floats", "symmetric", "with minima"],
)
def test_weight_counts_with_its_stored_size(weight: Weight, nbytes: int) -> None:
    assert least_bytes(replace(tiny("llama"), weights={"layers.0.gate": weight})) == nbytes


@pytest.mark.parametrize(("architecture", "num_read"), [("llama", 1), ("mistral", 0)], ids=["tied", "untied"])
def test_embedding_counts_in_full_only_if_it_is_the_head(architecture: Architecture, num_read: int) -> None:
    checkpoint = tiny(architecture)
    embed = torch.zeros(96, 64)
    assert least_bytes(replace(checkpoint, weights={"embed": embed})) == num_read * embed.nbytes
