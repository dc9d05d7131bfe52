"""A forbidden import between packages fails the build."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("octet", "kvpool", "specialist", "admission", "router", "simulation", "bench")


def lint(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, env={"PYTHONPATH": str(checkout)})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the product that passes the import check. A test that changes the copy restores it."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    assert lint(copy).returncode == 0
    return copy


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("kvpool/pool.py", "import specialist.scheduling.scheduler"),
        ("kvpool/block.py", "import time"),
        ("specialist/scheduling/sequence.py", "import random"),
        ("specialist/scheduling/step.py", "import torch"),
        ("specialist/scheduling/loop.py", "import bench.cli"),
        ("octet/identity.py", "import kvpool"),
        ("octet/supervisor/process.py", "import specialist.server.roles"),
        ("admission/breakers.py", "import router.routing.rules"),
        ("admission/budgets.py", "import random"),
        ("router/routing/policy.py", "import time"),
        ("router/dispatch/attempts.py", "import kvpool"),
        ("router/routing/classifier/linear.py", "import sklearn"),
        ("octet/client/clients.py", "import starlette"),
    ],
)
def test_a_forbidden_import_is_reported(checkout: Path, module: str, forbidden: str) -> None:
    whole = (checkout / module).read_text()
    (checkout / module).write_text(f"{whole}\n{forbidden}\n")
    try:
        broken = lint(checkout)
    finally:
        (checkout / module).write_text(whole)
    assert broken.returncode != 0
    assert "BROKEN" in broken.stdout


def test_a_caller_loads_no_server_package() -> None:
    script = (
        "import octet, octet.identity, octet.clock, sys; "
        f"sys.exit(any(name.partition('.')[0] in {(*PACKAGES[1:], 'torch', 'numpy', 'starlette', 'uvicorn')!r} "
        "for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


def test_the_engine_bench_needs_no_package_of_a_server() -> None:
    """A machine that only measures a GPU has few packages."""
    script = (
        "import sys\n"
        "for name in ('grpc_health', 'grpc_reflection', 'msgspec', 'opentelemetry', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "import bench.cli, bench.engine, bench.peers.octet_runner, bench.peers.vllm_runner\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
