"""JSON in as few bytes as it takes."""

import json
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def compact(value: Any) -> bytes:
    """Raises ValueError for numbers that JSON does not have."""
    return _ENCODER.encode(value).encode()
