"""Real compilers in the real sandbox. Precompiled headers are kept between runs, as they are for users."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from router.verify.cpp import CppVerifier
from router.verify.cpp_compiler import default_cache_folder, find_compiler, probe_compiler
from router.verify.pool import VerifierPool
from router.verify.sandbox import Sandbox, SandboxMode
from router.verify.verdict import Verdict, Verifier, VerifierLimits

T = TypeVar("T")
COMPILERS = ("g++", "clang++")
MODES: tuple[SandboxMode, ...] = ("namespaces", "landlock")
MakeCpp = Callable[..., CppVerifier]


@pytest.fixture(params=COMPILERS)
def driver(request: pytest.FixtureRequest) -> str:
    return found(str(request.param))


def found(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def make_cpp(driver: str, mode: SandboxMode = "namespaces", **changes: Any) -> CppVerifier:
    """Return a C++ verifier whose limit on wall time is long enough for a busy machine."""
    limits = VerifierLimits(
        changes.pop("cpu_seconds", 10.0), changes.pop("clock_seconds", 300.0), changes.pop("answer_bytes", 32 << 20)
    )
    compiler = probe_compiler(find_compiler(found(driver)))
    return CppVerifier("cpp", compiler, Sandbox(mode, VerifierPool()), default_cache_folder(), limits, **changes)


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
