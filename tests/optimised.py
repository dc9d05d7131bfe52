"""For `python -O`, which leaves out every `assert`: those of tests stay, also in what tests only use.

Pytest rewrites the asserts of `test_*.py` into statements that -O leaves alone, and with this plugin those of all other
modules below `tests`. What they test has none of its own, or loses them here: `make optimised`.
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
