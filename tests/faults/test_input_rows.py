"""Every test that a row about hostile input names exists."""

import re
from pathlib import Path

import pytest

from tests.faults.input_rows import NODES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("row", "node"), [(row, node) for row, nodes in NODES.items() for node in nodes])
def test_every_named_test_exists(row: int, node: str) -> None:
    file, _, name = node.partition("::")
    assert (ROOT / file).is_file(), f"row {row}"
    text = (ROOT / file).read_text()
    assert re.search(rf"^ *(?:async )?def {re.escape(name)}\(", text, re.MULTILINE) if name else "def test_" in text, (
        f"row {row}"
    )
