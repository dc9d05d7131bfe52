"""Text from callers and models, which must never be interpreted as anything but text."""

from octet.rpc.refusal import Refusal
from octet.terminal import replace_unprintable
from router.routing.classifier.base import sample_text
from router.routing.classifier.features import extract_features
from router.routing.rules.detectors import DETECTORS
from router.routing.rules.text import ScannedText
from router.routing.validation import fill_template
from router.verify.checks import find_json_error as json_trouble
from router.verify.checks import without_notebook_lines
from router.verify.cpp_source import (
    extract_cpp,
    extract_units,
    forms_of_unit,
    looks_like_cpp,
    mask_literals,
    split_pieces,
    wrap_local,
)
from router.verify.fences import extract_blocks
from tests.fuzz.parser import Parser

_LOG = (
    b"/usr/bin/ld: main.o: undefined reference to `foo::bar(int)'\ncollect2: error: ld returned 1 exit status\n"
    b"==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x602\n    #0 0x4f1 in main a.cpp:3\n"
    b"template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0> void f(T);\n"
    b"cmake_minimum_required(VERSION 3.20)\nadd_executable(a a.cpp)\nTraceback (most recent call last):\n"
)
_ANSWER = (
    b'Here:\n```cpp\n#include <vector>\n#include "own.h"\nint main() { std::vector<int> v{1}; /* x */ return v[0]; }\n'
    b"```\nand\n~~~json\n{\"a\": [1, 2.5e3, null]}\n~~~\n```python\n%matplotlib\nprint('x')\n```\n"
)
_CODE = (
    b'#include <map>\nnamespace a { template<class T> struct B { int c = R"x(y)x"[0]; }; }\nvoid f() { for (;;) {} }\n'
)
_CODE_WORDS = (
    *(
        b"```",
        b"~~~",
        b"```cpp\n",
        b"\n```\n",
        b'R"(',
        b"/*",
        b"*/",
        b"//",
        b"'",
        b'"',
        b"\\\n",
        b"#include <",
        b"#if 0\n",
    ),
    *(b"template<", b"class ", b"::", b"{", b"}", b"(", b")", b";", b"...", b"%%cell\n", b"!ls\n", b"namespace {"),
)
_JSON = (b'{"a": [1, 2.5e3, null, true, "x"], "b": {}}', b"[]")
_TEMPLATES = (
    b"{prompt}: fix {body}, please {{not}} this\n---\nthe prompt\n---\nthe body",
    b"{body}{prompt}\n---\na\n---\nb",
)


def _detected(raw: bytes) -> object:
    page = ScannedText(raw.decode("utf-8", "replace"))
    return [detect(page) for detect in DETECTORS.values()]


def _judged(raw: bytes) -> object:
    text = raw.decode("utf-8", "replace")
    found = [extract_cpp(text), extract_blocks(text), without_notebook_lines(text)]
    return found, [list(forms_of_unit(unit)) for unit in extract_units("fix it", text)]


def _read(raw: bytes) -> object:
    code = raw.decode("utf-8", "replace")
    return split_pieces(code), mask_literals(code), wrap_local(code, 0), looks_like_cpp(code)


def _filled(raw: bytes) -> object:
    template, _, rest = raw.decode("utf-8", "replace").partition("\n---\n")
    prompt, _, body = rest.partition("\n---\n")
    return fill_template(template, prompt, body, 2_000_000)


PARSERS = [
    Parser("text.rules", _detected, (), (_LOG, _ANSWER), "text", words=_CODE_WORDS, share=0.5),
    Parser("text.answer", _judged, (), (_ANSWER, _LOG), "text", words=_CODE_WORDS, share=0.3),
    Parser("text.cpp", _read, (), (_CODE, _ANSWER), "text", words=_CODE_WORDS, share=0.3),
    Parser(
        "text.json_answer",
        lambda raw: json_trouble(raw.decode("utf-8", "replace"), {"type": "object"}),
        (),
        _JSON,
        "json",
    ),
    Parser(
        "text.features",
        lambda raw: extract_features([sample_text(raw.decode("utf-8", "replace"))]),
        (),
        (_LOG, _ANSWER),
        "text",
        share=0.3,
    ),
    Parser(
        "text.template", _filled, (Refusal,), _TEMPLATES, "text", words=(b"{prompt}", b"{body}", b"{{", b"}}", b"{")
    ),
    Parser(
        "text.printable",
        lambda raw: replace_unprintable(raw.decode("utf-8", "surrogateescape")),
        (),
        (b"a\x1b[31mb", b"\xc2\x9b"),
        "text",
    ),
]
