"""What Anthropic's requests are made of. It takes no key it does not know, and neither is one left out here."""

from collections.abc import Collection
from typing import Any

from octet.rpc.refusal import shorten
from router.http.fault import Fault, wrong
from router.http.fields import Fields, text_of


def object_at(value: Any, where: str) -> Fields:
    """Raises Fault."""
    if not isinstance(value, dict):
        raise wrong(where, "an object", shorten(value))
    return Fields(value, where)


def check_keys(fields: Fields, known: Collection[str]) -> None:
    """Raises Fault. `cache_control` may stand anywhere and asks for nothing: prefixes are kept without being told."""
    for key in fields.given():
        if key == "cache_control":
            fields.table(key)
        elif key not in known:
            name = text_of(fields.name(key[:60]), "the name of a field")
            raise Fault(400, f"{name} is not a field that is known here", param=name, code="unknown_field")
