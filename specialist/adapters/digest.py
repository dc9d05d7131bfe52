"""Whether an adapter is the one that somebody has looked at."""

from specialist.adapters.errors import AdapterRefused


def check_digest(name: str, digest: str, pinned: str) -> None:
    """`pinned` is empty where nobody says which it must be. Raises AdapterRefused, naming both."""
    if pinned and digest != pinned:
        raise AdapterRefused("digest", f"{name} must be the adapter {pinned}, and this one is {digest}")
