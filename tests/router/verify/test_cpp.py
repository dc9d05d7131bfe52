# ruff: noqa: E501
"""Typical answers, verified with real compilers: leniently if they are fragments, strictly if they are programs."""

import asyncio
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import uvloop

from router.verify.cpp import CppVerifier
from router.verify.cpp_compiler import PrecompiledHeaders, find_compiler, probe_compiler
from router.verify.cpp_source import ANSWER_FILE
from router.verify.pool import VerifierPool
from router.verify.sandbox import Sandbox, SandboxedProgram, SandboxLimits, SandboxResult
from router.verify.verdict import VerifierLimits
from tests.router.verify.conftest import all_judged, found, judged, make_cpp, run

PROGRAM = "#include <iostream>\nint main() {\n  std::cout << 1;\n}\n"

ANSWERS = {
    "a program": ("passed", f"Here:\n```cpp\n{PROGRAM}```\nDone."),
    "left open": ("passed", f"```cpp\n{PROGRAM}"),
    "bare": ("passed", PROGRAM),
    "a fence without a language": ("passed", f"```\n{PROGRAM}```"),
    "tildes": ("passed", f"~~~c++\n{PROGRAM}~~~"),
    "without its headers": ("passed", "```cpp\nint main() { std::vector<int> v; std::sort(v.begin(), v.end()); }\n```"),
    "without std": ("passed", "```cpp\nint main() { vector<int> v; cout << v.size() << endl; }\n```"),
    "a function": ("passed", "```cpp\nint add(int a, int b) { return a + b; }\n```"),
    "statements": ("passed", "```cpp\nstd::vector<int> v{3, 1};\nstd::sort(v.begin(), v.end());\nfor (int x : v) std::cout << x;\n```"),
    "a class and its use": ("passed", "```cpp\nstruct P { int x; };\nP p{1};\nstd::cout << p.x;\n```"),
    "ellipses": ("passed", "```cpp\nvoid f() { ... }\nint main() {\n  ...\n  f();\n}\n```"),
    "two files": ("passed", '```cpp\n// a.h\n#pragma once\nstruct A { int x; };\n```\nand\n```cpp\n#include "a.h"\nint main() { A a; return a.x; }\n```'),
    "a file before its header": ("passed", '```cpp\n#include "a.h"\nint main() { A a; return a.x; }\n```\nand a.h:\n```cpp\n#ifndef A_H\n#define A_H\nstruct A { int x; };\n#endif\n```'),
    "one after the other": ("passed", "```cpp\nstruct A { int x = 0; };\n```\nUse it:\n```cpp\nA a;\na.x = 2;\n```"),
    "two versions": ("passed", "```cpp\nint f() { return 1; }\n```\nor\n```cpp\nint f() { return 2; }\n```"),
    "two programs": ("passed", f"```cpp\n{PROGRAM}```\nor\n```cpp\n{PROGRAM}```"),
    "a return": ("passed", "```cpp\nint x = 2;\nif (x > 1) { return x * 2; }\nreturn 0;\n```"),
    "a name that std has too": ("passed", "```cpp\n#include <iostream>\nusing namespace std;\nint gcd = 1;\nint main() { cout << gcd; }\n```"),
    "concepts": ("passed", "```cpp\ntemplate <std::integral T> T twice(T t) { return t * 2; }\n```"),
    "bash beside it": ("passed", f"```bash\ng++ x.cpp && ./a.out\n```\n```cpp\n{PROGRAM}```\n```text\n1\n```"),
    "a counterexample": ("passed", "This does not compile:\n```cpp\nint x = \"a\";\n```\nThis does:\n```cpp\nint y = 1;\n```"),
    "in a document": ("passed", f"````markdown\n# Title\n```cpp\n{PROGRAM}```\n````"),
    "a name of its own that std has": ("passed", "```cpp\nint negate(int x) { return -x; }\n```\nand\n```cpp\nint main() { return negate(10); }\n```"),
    "another such name": ("passed", "```cpp\nint count(int x) { return x; }\nint plus(int x) { return x; }\n```\nand\n```cpp\nint main() { return count(plus(1)); }\n```"),
    "such a name in a header": ("passed", "```cpp\nint main() { return negate(10); }\n```\nand\n```cpp\n#pragma once\nint negate(int x) { return -x; }\n```"),
    "such a name in two versions": ("passed", "```cpp\nint negate(int x) { return -x; }\n```\nand\n```cpp\nint main() { return negate(10); }\n```\nor\n```cpp\nint negate(int x) { return 0 - x; }\n```"),
    "two files without std": ("passed", "```cpp\nvoid f(vector<int>& v) { v.clear(); }\n```\nand\n```cpp\nint main() { vector<int> v; f(v); cout << 1; }\n```"),
    "prose": ("skipped", "Use a vector: it is contiguous."),
    "only bash": ("skipped", "```bash\nmake\n```"),
    "somebody's library": ("skipped", "```cpp\n#include <fmt/core.h>\nint main() { fmt::print(\"x\"); }\n```"),
    "somebody's header": ("skipped", '```cpp\n#include "widget.h"\nint main() { Widget w; }\n```'),
    "placeholders": ("skipped", "```cpp\nauto widget = make_widget(arguments);\nwidget->show();\n```"),
    "modules": ("skipped", "```cpp\nimport std;\nint main() {}\n```"),
    "no such header": ("failed", "```cpp\n#include <vectr>\nint main() {}\n```"),
    "undeclared": ("failed", "```cpp\nint main() { return y; }\n```"),
    "a missing semicolon": ("failed", "```cpp\nint main() { int x = 1 return x; }\n```"),
    "wrong types": ("failed", '```cpp\nint f() { std::string s = "a"; return s; }\n```'),
    "words in a fence": ("failed", "```cpp\nthe quick brown fox jumps over\nthe lazy dog and so on\n```"),
    "one of two": ("failed", "```cpp\nint f() { return 1; }\n```\nand\n```cpp\nint g() { return 1 }\n```"),
    "use of a file that is there": ("failed", '```cpp\nstruct A {};\n```\n```cpp\n#include "a.h"\nint main() { A a; a.x = 1; }\n```'),
    "nobody's function": ("failed", "```cpp\nint f(int x) { return helper_of_nobody(x); }\n```"),
    "an ordinary remark": ("failed", "```cpp\nint f(int x) { return x } // returns -1 on bad input\n```"),
    "a corrected version that is not": ("failed", "Here is the corrected version of the broken code:\n```cpp\nint main() { return }\n```"),
}  # fmt: skip


@pytest.mark.parametrize("driver", ["clang++", pytest.param("g++", marks=pytest.mark.slow)])
def test_typical_answers_get_their_verdicts(driver: str) -> None:
    verdicts = all_judged(make_cpp(found(driver)), [answer for _, answer in ANSWERS.values()])
    got = dict(zip(ANSWERS, verdicts, strict=True))
    assert {name: v for name, v in got.items() if v.outcome != ANSWERS[name][0]} == {}
    assert got["a missing semicolon"].why.startswith("line 1: ")
    assert all(verdict.why for verdict in verdicts if verdict.outcome != "passed")


SOME = (
    "such a name in a header",
    "such a name in two versions",
    "without std",
    "statements",
    "two files",
    "undeclared",
)


FORGED = {
    "the headers are spoilt": '#line 1 "error: precompiled"\nint main() { return y; }',
    "spelt otherwise": '#\\\n/*\n*/ line 1 "\\nerror: PCH"\nint main() { return y; }',
    "a header is not here": '#line 1 "\\n<stdin>:1:1: fatal error: foo/bar.h: No such file or directory\\n"\nint main() { return y; }',
    "said by a pragma": '#pragma message("\\n<stdin>:1:1: fatal error: foo/bar.h: No such file or directory\\nerror: PCH")\nint main() { return y; }',
    "by its own name": '#pragma message("\\n" __FILE__ ":1:1: fatal error: foo/bar.h: No such file or directory")\nint main() { return y; }',
    "in a context": '# /*\n*/ 1 "\\n<stdin>:1:1: fatal error: foo/bar.h: No such file or directory\\n"\nint main() { return y; }',
}  # fmt: skip


def test_an_answer_cannot_forge_compiler_output(driver: str) -> None:
    verifier = make_cpp(driver)
    verdicts = all_judged(verifier, [f"```cpp\n{code}\n```" for code in FORGED.values()])
    assert {name: v for name, v in zip(FORGED, verdicts, strict=True) if v.outcome != "failed"} == {}
    fine = '#line 1 "error: PCH"\n#pragma message("\\nerror: PCH")\nint main() {}'
    assert judged(verifier, f"```cpp\n{fine}\n```").outcome == "passed"
    assert verifier.headers.is_precompiled and not verifier.headers.is_lost


@pytest.mark.slow
def test_gcc_gives_the_same_verdicts() -> None:
    verdicts = all_judged(make_cpp("g++"), [ANSWERS[name][1] for name in SOME])
    assert {name: v for name, v in zip(SOME, verdicts, strict=True) if v.outcome != ANSWERS[name][0]} == {}


def test_names_declared_in_the_question_are_known() -> None:
    driver = "clang++"
    question = "```cpp\nstruct Widget { int width; };\nint area(const Widget& w);\n```\nImplement it."
    answer = "```cpp\nint area(const Widget& w) { return w.width * w.width; }\n```"
    assert judged(make_cpp(driver), answer, question).outcome == "passed"
    assert judged(make_cpp(driver), answer).outcome == "failed"
    assert judged(make_cpp(driver), answer.replace("w.width *", "w.height *"), question).outcome == "failed"


def test_a_whole_program_must_compile() -> None:
    question = "```cpp\nint main() { int y = 2; return y }\n```"
    assert judged(make_cpp("clang++"), "```cpp\nint main() { return y; }\n```", question).outcome == "failed"
    assert judged(make_cpp("clang++"), "```cpp\nint f() { return y; }\n```", question).outcome == "skipped"


def test_an_answer_may_continue_the_question() -> None:
    question = "#include <vector>\nint sum(std::vector<int> v) {\n  int all = 0;\n"
    assert (
        judged(make_cpp("clang++"), "```cpp\n  for (int x : v) all += x;\n  return all;\n}\n```", question).outcome
        == "passed"
    )


def test_code_can_be_required() -> None:
    assert judged(make_cpp("clang++", is_code_required=True), "I would rather not.").outcome == "failed"


@pytest.mark.slow
def test_a_later_standard_is_tried() -> None:
    answer = "```cpp\n#include <expected>\nstd::expected<int, int> f() { return 1; }\nint main() { return *f(); }\n```"
    assert judged(make_cpp("g++"), answer).outcome in ("passed", "skipped")


@pytest.mark.slow
def test_headers_are_compiled_once_and_kept(tmp_path: Path) -> None:
    async def prepared() -> tuple[bool, float]:
        preamble = PrecompiledHeaders(probe_compiler(find_compiler(found("clang++"))), tmp_path)
        await preamble.prepare(Sandbox("namespaces", VerifierPool()))
        (built,) = tmp_path.glob("preamble-*/*.pch")
        return preamble.is_precompiled, built.stat().st_mtime

    assert run(prepared()) == run(prepared())
    assert [path.name for path in next(tmp_path.glob("preamble-*")).iterdir() if path.is_dir()] == []


@pytest.mark.slow
def test_a_spoilt_cache_is_noticed(tmp_path: Path) -> None:
    async def first_and_second() -> list[str]:
        compiler = probe_compiler(find_compiler(found("clang++")))
        outcomes: list[str] = []
        for _ in range(2):
            verifier = CppVerifier(
                "cpp", compiler, Sandbox("namespaces", VerifierPool()), tmp_path,
                VerifierLimits(20, 300, 1 << 20),
            )  # fmt: skip
            outcomes.append((await verifier.verify("", PROGRAM)).outcome)
            for built in tmp_path.glob("preamble-*/*.pch"):
                built.write_bytes(b"spoilt")
        return outcomes

    assert run(first_and_second()) == ["passed", "passed"]


@pytest.mark.slow
def test_corrupt_precompiled_headers_are_compiled_again(tmp_path: Path) -> None:
    async def outcomes() -> list[tuple[str, bool]]:
        compiler = probe_compiler(find_compiler(found("clang++")))
        verifier = CppVerifier(
            "cpp", compiler, Sandbox("namespaces", VerifierPool()), tmp_path,
            VerifierLimits(20, 300, 1 << 20),
        )  # fmt: skip
        seen: list[tuple[str, bool]] = []
        for spoil in (None, lambda built: built.write_bytes(b"spoilt"), None, Path.unlink):
            for built in tmp_path.glob("preamble-*/*.pch"):
                if spoil:
                    spoil(built)
            seen.append(((await verifier.verify("", PROGRAM)).outcome, verifier.headers.is_precompiled))
        return seen

    assert run(outcomes()) == [("passed", True), ("unavailable", False), ("passed", True), ("passed", True)]


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    compiler = probe_compiler(find_compiler("g++"))
    verifier = CppVerifier(
        "cpp",
        compiler,
        Sandbox("namespaces", VerifierPool()),
        tmp_path,
        VerifierLimits(5, 60, 9999),
    )
    with caplog.at_level(logging.ERROR):
        verdict = judged(verifier, PROGRAM)
    assert verdict.outcome == "unavailable" and "writable by others" in verdict.why
    assert "cannot be verified" in caplog.text


def test_an_answer_does_not_fail_because_the_machine_is_busy() -> None:
    async def rushed() -> str:
        verifier = make_cpp("clang++", clock_seconds=300.0)
        await verifier.verify("", PROGRAM)
        verifier.sandbox = _SlowSandbox("namespaces", VerifierPool())
        return (await verifier.verify("", PROGRAM)).outcome

    assert run(rushed()) == "unavailable"


class _SlowSandbox(Sandbox):
    async def run(self, caged: SandboxedProgram, given: bytes, limits: SandboxLimits) -> SandboxResult:
        return await super().run(caged, given, replace(limits, seconds=0.001))


def test_waiting_for_a_slot_does_not_count_as_compile_time() -> None:
    async def allowed() -> list[float]:
        sandbox = _CrowdedSandbox("namespaces", VerifierPool())
        verifier = make_cpp("clang++", clock_seconds=100.0)
        verifier.sandbox, verifier._is_ready = sandbox, True
        assert (await verifier.verify("", "```cpp\nint x = 1;\n```\nand\n```cpp\nint y = 2;\n```")).outcome == "failed"
        return sandbox.allowed

    assert [round(100 - seconds, 6) for seconds in run(allowed())] == [0, 2, 4, 6]


@dataclass(frozen=True)
class _CrowdedSandbox(Sandbox):
    """A sandbox in which every run starts late, takes two seconds and reports an error."""

    allowed: list[float] = field(default_factory=list)

    async def run(self, caged: SandboxedProgram, given: bytes, limits: SandboxLimits) -> SandboxResult:
        self.allowed.append(limits.seconds)
        await asyncio.sleep(0.05)
        return SandboxResult("exited", 1, f"{ANSWER_FILE}:1:1: error: a mistake\n", 0.0, 2.0)


def test_the_event_loop_runs_during_verification() -> None:
    async def ticking() -> int:
        verifier = make_cpp("clang++")
        await verifier.verify("", PROGRAM)
        bomb = "```cpp\nconstexpr long f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\nconstexpr long x = f(70);\n```"
        task = asyncio.ensure_future(verifier.verify("", bomb))
        ticks = 0
        while ticks < 50 and not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await verifier.verify("", PROGRAM)).outcome == "passed"
        return ticks

    assert uvloop.run(ticking()) > 5, "the event loop was blocked"
    assert not _zombies()


def _zombies() -> list[str]:
    mine = f"\nPPid:\t{os.getpid()}\n"
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if mine in text and "\nState:\tZ" in text:
            found.append(text)
    return found
