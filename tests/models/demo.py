"""The built-in demo model, for tests that need a real one."""

from pathlib import Path

import pytest

from specialist.models.demo import cache_directory, demo_model
from specialist.models.fields import ModelRefused


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Return SmolLM2-135M-Instruct, prepared once and then cached. Skip the test if the model is missing and cannot be
    downloaded."""
    try:
        return demo_model(cache_directory())
    except ModelRefused as refused:
        pytest.skip(str(refused))
