"""The verifiers that a specialist's `verify` may name; `router.verify` implements them."""

from collections.abc import Mapping
from types import MappingProxyType

VERIFIERS: Mapping[str, str] = MappingProxyType(
    {
        "cpp": "the C++ in it compiles; what has no C++ in it is not judged",
        "cpp:required": "the C++ in it compiles, and there is some",
        "python": "the Python in it parses; what has no Python in it is not judged",
        "python:required": "the Python in it parses, and there is some",
        "json": "it is JSON",
        "non_empty": "it says something",
        "none": "nobody judges it",
    }
)
SCHEMA_PREFIX = "json:"


def trouble_with_verifier(spec: str) -> str:
    """Empty where it can be meant; otherwise what would be right. Files and modules are not looked for."""
    if spec in VERIFIERS or (spec.startswith(SCHEMA_PREFIX) and spec.removeprefix(SCHEMA_PREFIX).strip()):
        return ""
    module, colon, name = spec.partition(":")
    if colon and module not in VERIFIERS and _is_name(module) and _is_name(name):
        return ""
    known = ", ".join((*VERIFIERS, "json:SCHEMA_FILE"))
    return f"there is no verifier {spec!r}: one of {known}, or one of your own as module:name"


def _is_name(text: str) -> bool:
    return all(word.isidentifier() for word in text.split("."))
