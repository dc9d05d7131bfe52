"""A strict parser for the part of RFC 9651 (structured fields) that the header `octet-slo` uses."""

import re
from typing import TypeAlias

Members: TypeAlias = dict[str, dict[str, float]]
_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")
_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_DECIMAL = re.compile(r"-?[0-9]{1,12}\.[0-9]{1,3}")
_INTEGER = re.compile(r"-?[0-9]{1,15}")


def members(text: str) -> Members:
    """Return the parsed members of a header. Raises ValueError if it is malformed."""
    found: Members = {}
    for member in text.split(", "):
        name, *parameters = member.split(";")
        if not _TOKEN.fullmatch(name) or name in found:
            raise ValueError(f"not a token, or repeated: {name!r}")
        found[name] = {}
        for each in parameters:
            key, _, value = each.partition("=")
            if not _KEY.fullmatch(key) or not (_DECIMAL.fullmatch(value) or _INTEGER.fullmatch(value)):
                raise ValueError(f"not a parameter: {each!r}")
            found[name][key] = float(value)
    return found
