"""What replicas call the adapters that are loaded for lanes: a name of its own for every load."""

import re

_MADE_HERE = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}\.[0-9]+-[0-9a-f]{4}")


def load_name(name: str, number: int, token: str) -> str:
    """`token` is four hex digits, which make names differ that were chosen at the same moment elsewhere."""
    return f"{name}.{number}-{token}"


def is_made_here(name: str) -> bool:
    """Here, or by another router: by none of their configurations, and hardly by anybody's hand."""
    return _MADE_HERE.fullmatch(name) is not None
