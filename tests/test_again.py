"""Who gets a second look, and who does not."""

import json
from pathlib import Path

import pytest

from tests.again import MOST, main


def test_a_test_that_fails_again_has_failed_and_one_that_does_not_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_two.py").write_text("def test_good():\n    pass\n\n\ndef test_bad():\n    assert False\n")
    good, bad = f"{tmp_path}/test_two.py::test_good", f"{tmp_path}/test_two.py::test_bad"
    assert main(1, written(tmp_path, good)) == 0
    assert f"mend them:\n  {good}" in capfd.readouterr().out
    assert main(1, written(tmp_path, good, bad)) == 1
    assert "mend them" not in capfd.readouterr().out


@pytest.mark.parametrize("status", [2, 3, 4, 5, -9])
def test_a_run_that_did_not_come_to_its_end_is_no_run(status: int, tmp_path: Path) -> None:
    assert main(status, written(tmp_path, "tests/test_again.py::test_nothing")) == status


def test_many_failures_are_a_failure_and_so_are_none_that_are_known(tmp_path: Path) -> None:
    assert main(1, written(tmp_path, *(f"tests/test_again.py::test_{n}" for n in range(MOST + 1)))) == 1
    assert main(1, written(tmp_path)) == 1
    assert main(1, tmp_path / "missing") == 1
    assert main(1, written(tmp_path, "tests/test_that_does_not_import.py")) == 1


def written(folder: Path, *names: str) -> Path:
    cache = folder / "lastfailed"
    cache.write_text(json.dumps(dict.fromkeys(names, True)))
    return cache
