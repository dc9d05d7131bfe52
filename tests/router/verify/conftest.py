"""Real compilers in the real sandbox; what is compiled beforehand is kept from run to run, as it is for users."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from router.verify.compiler import ask_compiler, find_compiler
from router.verify.cpp import CppVerifier
from router.verify.preamble import default_cache
from router.verify.sandbox import Mode, Sandbox
from router.verify.verdict import Verdict, Verifier
from router.verify.workshop import Workshop

T = TypeVar("T")
COMPILERS = ("g++", "clang++")
MODES: tuple[Mode, ...] = ("namespaces", "landlock")
MakeCpp = Callable[..., CppVerifier]


@pytest.fixture(params=COMPILERS)
def driver(request: pytest.FixtureRequest) -> str:
    return found(str(request.param))


def found(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def make_cpp(driver: str, mode: Mode = "namespaces", **changes: Any) -> CppVerifier:
    """With so much time by the clock that a busy machine does not matter."""
    settings = {"cpu_seconds": 10.0, "clock_seconds": 300.0, "answer_bytes": 32 << 20} | changes
    compiler = ask_compiler(find_compiler(found(driver)))
    return CppVerifier("cpp", compiler, Sandbox(mode, Workshop()), default_cache(), **settings)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def judged(verifier: Verifier, answer: str, question: str = "") -> Verdict:
    return run(_judged(verifier, answer, question))


async def _judged(verifier: Verifier, answer: str, question: str) -> Verdict:
    try:
        return await verifier.verify(question, answer)
    finally:
        await verifier.close()


def all_judged(verifier: Verifier, answers: list[str]) -> list[Verdict]:
    async def one_after_another() -> list[Verdict]:
        try:
            return [await verifier.verify("", answer) for answer in answers]
        finally:
            await verifier.close()

    return run(one_after_another())
