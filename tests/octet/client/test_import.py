"""Importing the client is fast and loads no server code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import octet

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "numpy", "yaml", "sklearn", "kvpool", "specialist", "router", "admission", "bench")
NEEDED = "import grpc, grpc.aio, google.protobuf.internal.builder, google.protobuf.descriptor_pool"


def fresh(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)


def test_client_imports_only_grpc_and_protobuf() -> None:
    script = f"""
import sys
before = set(sys.modules)
from octet import AsyncClient, Client
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print(sorted(top for top in tops if not top.startswith("_")))
sys.exit(any(name.partition(".")[0] in {HEAVY!r} for name in sys.modules))
"""
    ended = fresh(script)
    assert ended.returncode == 0, ended.stdout
    tops = set(ended.stdout.strip("[]\n").replace("'", "").split(", "))
    assert {"grpc", "google", "octet"} <= tops
    own_of_grpc = {"cython_runtime", "grpc_health", "grpc_reflection", "grpc_status", "grpc_tools", "typing_extensions"}
    assert tops <= {"grpc", "google", "octet"} | own_of_grpc


def test_importing_the_package_loads_no_client() -> None:
    ended = fresh("import octet, octet.clock, sys; sys.exit('grpc' in sys.modules or 'octet.client' in sys.modules)")
    assert ended.returncode == 0, ended.stderr


def cpu_seconds(script: str) -> float:
    before = os.times()
    ended = fresh(script)
    after = os.times()
    assert ended.returncode == 0, ended.stderr
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_client_imports_quickly() -> None:
    """Importing the client takes less than twice the CPU time of importing its dependencies alone. A limit in seconds
    would depend on the machine."""
    clients, dependencies = ([cpu_seconds(script) for _ in range(5)] for script in ("from octet import Client", NEEDED))
    assert min(clients) < 2 * min(dependencies), (clients, dependencies)


def test_operator_client_is_loaded_on_demand() -> None:
    ended = fresh("from octet import Client; import sys; sys.exit('octet.client.operator' in sys.modules)")
    assert ended.returncode == 0, ended.stderr
    assert fresh("from octet import Operator; Operator").returncode == 0


def test_exports_exactly_the_public_names() -> None:
    assert all(hasattr(octet, name) for name in octet.__all__)
    with pytest.raises(AttributeError, match="Absent"):
        _ = octet.Absent
