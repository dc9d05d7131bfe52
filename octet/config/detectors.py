"""The built-in structural detectors that a rule may name; `router.rules` implements them."""

from collections.abc import Mapping
from types import MappingProxyType

DETECTORS: Mapping[str, str] = MappingProxyType(
    {
        "sfinae-heavy": "C++ whose templates are constrained by enable_if, void_t or requires, many times over",
        "build-text": "the text of CMake or Make files",
        "linker-output": "what a linker says: undefined references, duplicate symbols, libraries not found",
        "stack-trace": "a debugger's or a crash handler's backtrace",
        "sanitizer-report": "a report of AddressSanitizer, ThreadSanitizer, MemorySanitizer, UBSan or Valgrind",
    }
)
