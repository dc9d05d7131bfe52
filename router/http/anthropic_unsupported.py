"""What Anthropic's API can do and nobody here can: refused by name, with the reason, not left out in silence."""

from collections.abc import Mapping
from typing import Any

from router.http.fault import unsupported
from router.http.fields import Fields

_ONE_TIER = "there is one; octet.priority says who is first"

UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "thinking": (({"type": "disabled"},), "the specialists answer without a part for thinking"),
    "service_tier": (("auto", "standard_only"), _ONE_TIER),
    "speed": (("standard",), _ONE_TIER),
    "container": ((), "nothing is executed here"),
    "mcp_servers": (([],), "nothing is called from here"),
    "context_management": ((), "a conversation is read as it is"),
    "diagnostics": ((), "octet.receipt says what became of a request"),
    "inference_geo": ((), "there is one place"),
    "user_profile_id": ((), "no profiles are kept; metadata.user_id says who asks"),
    "workspace_id": ((), "there are no workspaces"),
}
"""By field: the values that ask for nothing, and why no other is taken."""


def check_supported(fields: Fields) -> None:
    """Raises Fault."""
    for key, (harmless, why) in UNSUPPORTED.items():
        if fields.has(key) and fields.raw(key) not in harmless:
            raise unsupported(fields.name(key), why)
