"""Importing the client is fast and loads no server code."""

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


COUNTED = """
import sys

num_calls = 0

def count(frame, event, argument):
    global num_calls
    num_calls += 1

sys.setprofile(count)
{imports}
sys.setprofile(None)
print(num_calls)
"""


def num_calls(imports: str) -> int:
    """Return how many calls and returns of functions these imports take. Unlike a time, the number is the same on every
    machine under every load."""
    ended = fresh(COUNTED.format(imports=imports))
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def test_client_imports_quickly() -> None:
    """Importing the client takes at most 1.6 times the function calls of importing its dependencies alone."""
    client, dependencies = num_calls("from octet import Client"), num_calls(NEEDED)
    assert 50_000 < dependencies < client < 1.6 * dependencies, (client, dependencies)


def test_operator_client_is_loaded_on_demand() -> None:
    ended = fresh("from octet import Client; import sys; sys.exit('octet.client.operator' in sys.modules)")
    assert ended.returncode == 0, ended.stderr
    assert fresh("from octet import Operator; Operator").returncode == 0


def test_exports_exactly_the_public_names() -> None:
    assert all(hasattr(octet, name) for name in octet.__all__)
    with pytest.raises(AttributeError, match="Absent"):
        _ = octet.Absent
