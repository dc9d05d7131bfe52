"""A plugin that keeps the asserts of tests and their helpers under `python -O`, which removes every `assert`.

Pytest rewrites the asserts of `test_*.py` into statements that -O keeps. With this plugin it also rewrites those of all
other modules below `tests`. The asserts of the product are removed. `make optimised` runs the tests in this way.
"""

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(
        name
        for name in (f"tests.{path.stem}" for path in Path(__file__).parent.iterdir() if path.suffix in ("", ".py"))
        if name not in sys.modules
    )
)
