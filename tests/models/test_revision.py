"""The revision of a model, and the check that its weights are finite."""

from hashlib import sha256
from math import inf, nan
from pathlib import Path

import pytest
import torch

from octet.identity import digest_parts
from specialist.models.checks import CHUNK, SCANNED_AT_ONCE, check_finite, compute_revision
from specialist.models.fields import ModelRefused
from specialist.models.progress import silent


def test_the_revision_follows_from_keys_and_contents_in_order(tmp_path: Path) -> None:
    files, parts, seen = {}, list[bytes](), list[tuple[int, int]]()
    for name, size in (("b", 3 * CHUNK + 5), ("a", 0), ("c", 7)):
        files[name] = tmp_path / name
        files[name].write_bytes(name.encode() * size)
    for name in "abc":
        parts += (name.encode(), sha256(files[name].read_bytes()).digest())
    found = compute_revision(files, lambda _, done, total: seen.append((done, total)))
    assert found == digest_parts(parts).hex()
    total = 3 * CHUNK + 12
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (total, total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 3, 16, 1000, SCANNED_AT_ONCE + 3])
def test_a_single_element_that_is_not_finite_is_found(dtype: torch.dtype, size: int) -> None:
    weight = torch.linspace(-2.0, 2.0, size).to(dtype)
    for place in {0, size // 2, size - 1}:
        for value in (nan, inf, -inf):
            kept, weight[place] = weight[place].clone(), value
            with pytest.raises(ModelRefused, match="w contains NaN or infinity"):
                check_finite({"w": lambda: [torch.empty(0, dtype=dtype), weight]}, "model", silent)
            weight[place] = kept
    check_finite({"w": lambda: [torch.empty(0, dtype=dtype), weight]}, "model", silent)
