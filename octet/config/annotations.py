"""Annotations of schema fields: limits, flags, known names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class FieldFlag(Enum):
    LIVE = "live"  # a running router applies a new value without a restart
    RUNS = "runs"  # affects how the ensemble runs, not which specialist answers: excluded from the digest
    SHARED = "shared"  # allowed at the top of the file, as a default for every specialist
    BY_NAME = "by name"  # a mapping from names to mappings, instead of a list


class ValueUnit(Enum):
    BYTES = "bytes"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class TextLimits:
    most: int  # characters
    least: int = 0
    pattern: re.Pattern[str] | None = None
    what: str = "text"


@dataclass(frozen=True, slots=True)
class CountLimits:
    most: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path relative to the configuration file."""

    word: str | None = None  # a reserved word that is allowed instead of a path
    hub: bool = False  # whether hf:ORG/NAME is allowed instead of a path


HUB_PREFIX = "hf:"
_HUB_FORM = "hf:ORG/NAME or hf:ORG/NAME/FILE.gguf, with @REVISION after it for one version (a commit, tag or branch)"


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository of the Hugging Face hub, or a GGUF file in it."""

    repo: str  # ORG/NAME
    file: str = ""  # empty for the whole repository
    revision: str = ""  # a commit, tag or branch; empty for the newest commit

    def __str__(self) -> str:
        file, revision = self.file and f"/{self.file}", self.revision and f"@{self.revision}"
        return f"{HUB_PREFIX}{self.repo}{file}{revision}"


_HUB_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB_REFERENCE = re.compile(
    rf"hf:({_HUB_NAME}/{_HUB_NAME})(?:/((?:[\w+-][\w .+-]*/)*[\w+-][\w .+-]*\.gguf))?(?:@([\w.-]+(?:/[\w.-]+)*))?",
    re.ASCII,
)


def parse_hub_reference(text: str) -> HubReference | None:
    """Return the reference; None for text that is a path. Raises ValueError for a reference of the wrong form."""
    if not text.startswith(HUB_PREFIX):
        return None
    found = _HUB_REFERENCE.fullmatch(text)
    if found is None or ".." in text:
        raise ValueError(_HUB_FORM)
    return HubReference(found[1], found[2] or "", found[3] or "")


@dataclass(frozen=True, slots=True)
class RefersTo:
    """The value must be the name of an entry in the ensemble's field `to`, such as `specialists`."""

    to: str


@dataclass(frozen=True, slots=True)
class OneOf:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shorthand:
    """Allows a scalar in place of a mapping. The scalar sets `field`; the other fields keep their defaults."""

    field: str


NAME = TextLimits(
    most=64,
    least=1,
    pattern=re.compile(r"[a-z0-9][a-z0-9._-]{0,63}"),
    what="a name of lower-case letters, digits, '.', '_' and '-' that starts with a letter or a digit",
)
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS = TextLimits(
    most=1024,
    least=3,
    pattern=re.compile(rf"unix:[^\s].*|(dns:///)?([^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):{_PORT}"),
    what="an address such as host:port, dns:///name:port or unix:PATH, with a port from 1 to 65535",
)
ORIGIN = TextLimits(
    most=300,
    least=8,
    pattern=re.compile(rf"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:{_PORT})?"),
    what="an origin as browsers write it: https:// or http://, a host in lower case, a port unless it is the usual one",
)
DIGEST = TextLimits(most=4096, pattern=re.compile("[0-9a-f]{64}"), what="a sha256 of 64 lowercase hex digits")
DEVICE = TextLimits(
    most=16, least=3, pattern=re.compile(r"cpu|cuda(:[0-9]{1,3})?"), what="cpu, cuda, or one card of several as cuda:N"
)
HOST = TextLimits(most=253, least=1, pattern=re.compile(r"[^\s/]+"), what="a host's name or address")


DETECTORS: Mapping[str, str] = MappingProxyType(
    {
        "sfinae-heavy": "C++ whose templates are constrained by enable_if, void_t or requires, many times over",
        "build-text": "the text of CMake or Make files",
        "linker-output": "linker errors: undefined references, duplicate symbols, libraries not found",
        "stack-trace": "a debugger's or a crash handler's backtrace",
        "sanitizer-report": "a report of AddressSanitizer, ThreadSanitizer, MemorySanitizer, UBSan or Valgrind",
    }
)


VERIFIERS: Mapping[str, str] = MappingProxyType(
    {
        "cpp": "the C++ in it compiles; an answer without C++ is not judged",
        "cpp:required": "the C++ in it compiles; an answer without C++ fails",
        "python": "the Python in it parses; an answer without Python is not judged",
        "python:required": "the Python in it parses; an answer without Python fails",
        "json": "it is JSON",
        "non_empty": "it is not empty",
        "none": "answers are not judged",
    }
)
SCHEMA_PREFIX = "json:"
CODE_VERIFIER = "code"  # of a task: `cpp` or `python`, by the language of the code in the answer


def verifier_problem(spec: str) -> str:
    """Return "" if the name is valid, else a description of the allowed names. Files and modules are not looked up."""
    if spec in VERIFIERS or (spec.startswith(SCHEMA_PREFIX) and spec.removeprefix(SCHEMA_PREFIX).strip()):
        return ""
    module, colon, name = spec.partition(":")
    if colon and module not in VERIFIERS and _is_dotted_name(module) and _is_dotted_name(name):
        return ""
    known = ", ".join((*VERIFIERS, "json:SCHEMA_FILE"))
    return f"there is no verifier {spec!r}; use one of {known}, or a custom one as module:name"


def _is_dotted_name(text: str) -> bool:
    return all(word.isidentifier() for word in text.split("."))
