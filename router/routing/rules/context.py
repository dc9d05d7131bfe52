"""Tells that another language's tool wrote a text: such tools also link, crash and run make."""

from collections.abc import Iterable

from router.routing.rules.text import LINE_START, ScannedText, TextMark, text_marks

_OUTPUT = {  # lines that only this language's tools print
    "Rust": (
        TextMark("Compiling ", LINE_START, r"\S+ v\d"),
        *text_marks("stack backtrace:", before=LINE_START),
        *text_marks("std::panicking::", "core::panicking::", "rust_begin_unwind"),
        *text_marks(
            "error[E", "error: could not compile `", "error: linking with `cc` failed", "thread 'main' panicked",
            before=LINE_START,
        ),
    ),
    "Go": text_marks(
        "# command-line-arguments", "panic: runtime error", "goroutine ", "cgo: ", "go: ", before=LINE_START
    ),
    "Node.js": text_marks("npm ERR!", "gyp ERR!", "npm error", "gyp info", "npm WARN", before=LINE_START),
    "LaTeX": text_marks(
        "! LaTeX Error", "! Undefined control sequence", "! Package ", "LaTeX Warning", "This is pdfTeX",
        "This is XeTeX", "This is LuaHBTeX", "! Emergency stop", "! Missing ", "Latexmk: ", before=LINE_START,
    ),
    "Java": text_marks(
        'Exception in thread "', "[ERROR] Failed to execute goal", "FAILURE: Build failed with an exception",
        "Caused by: java", before=LINE_START,
    ),
    "Python": text_marks(
        "Traceback (most recent call last):", "error: subprocess-exited-with-error", "ERROR: Failed building wheel",
        before=LINE_START,
    ),
    "Haskell": text_marks("cabal: ", "[1 of ", before=LINE_START),
}  # fmt: skip
_NAMES = {  # names of files and tools; they count only if nothing names C or C++
    "Rust": text_marks("--> src/", "/rustc/", "rustup", ".rs:", "rustlib", "cargo build", "cargo run"),
    "Go": text_marks(".go:", "runtime.cgo", "/pkg/tool/", "go build"),
    "Node.js": text_marks("node-gyp", "node_modules/", "node:internal", "yarn run"),
    "LaTeX": text_marks(".tex:", "pdflatex", "latexmk", ".tex "),
    "Java": text_marks(".java:", "(Native Method)", ".kt:"),
    "Python": text_marks("setup.py", "site-packages/", '.py", line'),
    "Haskell": text_marks(".hs:"),
    "Swift": text_marks(".swift:", "swiftc"),
    "C#": text_marks(": error CS", ".csproj", ".cs:line"),
    "Fortran": text_marks(".f90:", ".f90(", "gfortran"),
    "another language": text_marks(
        ".zig:", ".nim(", ".pas(", ".adb:", '.ml", line', ".erl:", ".rb:", ".pl line", ".php:", ".lua:", ".jl:"
    ),
}
_CPP_COMPILED = text_marks("g++", "clang++", ".cpp", ".cc:", ".cxx")
"""Shows that Python built an extension in C++: the error is the compiler's or the linker's."""
_RUST_TOO = text_marks("std::")  # Rust's library has this name as well
_OURS = text_marks(".cpp", ".cc:", ".cxx", ".hpp", ".c:", ".h:", "CMakeLists.txt", "g++", "clang++", "std::", "C++")


def other_toolchain(scanned: ScannedText) -> str:
    """Return the language whose tool wrote the text; empty if none is recognized."""
    for language, marks in _OUTPUT.items():
        if any(scanned.first(mark) >= 0 for mark in marks) and not (
            language == "Python" and _has(scanned, _CPP_COMPILED)
        ):
            return language
    for language, marks in _NAMES.items():
        if _has(scanned, marks):
            ours = [mark for mark in _OURS if language != "Rust" or mark not in _RUST_TOO]
            return "" if _has(scanned, ours) else language
    return ""


def _has(scanned: ScannedText, marks: Iterable[TextMark]) -> bool:
    return any(scanned.find(mark) >= 0 for mark in marks)
