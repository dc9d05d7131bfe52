"""The TypeScript SDK and OpenAI's package for Node, alone and against a router."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.router.keys.keyed import issue_key, running_keyed_router
from tests.sdk.node import NODE, PACKAGE, check_modules, compiled, run_tests, tool
from tests.sdk.restart import restarting
from tests.sdk.running_router import running_router
from tests.specialist.server.harness import run


@pytest.fixture(scope="module")
def build() -> Iterator[Path]:
    check_modules()
    folder = compiled("typescript")
    yield folder
    shutil.rmtree(folder)


def test_node_is_the_oldest_supported_version() -> None:
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    promised = json.loads((PACKAGE / "package.json").read_text())["engines"]["node"]
    assert f">={version.removeprefix('v').partition('.')[0]}" == promised


@pytest.mark.slow
def test_the_source_is_formatted() -> None:
    check_modules()
    done = tool("prettier/bin/prettier.cjs", "--check", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_lock_file_names_no_host() -> None:
    packages = json.loads((PACKAGE / "package-lock.json").read_text())["packages"]
    assert len(packages) > 5
    assert [name for name, each in packages.items() if "resolved" in each] == []
    assert [
        name for name, each in packages.items() if name and not each.get("integrity", "").startswith("sha512-")
    ] == []


def test_package_has_no_runtime_dependencies() -> None:
    package = json.loads((PACKAGE / "package.json").read_text())
    assert not {"dependencies", "peerDependencies", "optionalDependencies"} & set(package)


def test_package_exports_its_build(tmp_path: Path) -> None:
    check_modules()
    done = tool("typescript/bin/tsc", "-p", "tsconfig.json", "--outDir", str(tmp_path / "dist"))
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(PACKAGE / "package.json", tmp_path)
    exported = json.loads((PACKAGE / "package.json").read_text())["exports"]["."]
    assert all((tmp_path / place).is_file() for place in exported.values())
    script = tmp_path / "caller.mjs"
    script.write_text('import { Busy, Octet } from "octet-serve"; new Octet(); console.log(Busy.name);')
    assert (
        subprocess.run([NODE, script], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout == "Busy\n"
    )


def test_unit_tests_pass(build: Path) -> None:
    run(run_tests(sorted((build / "tests").glob("*.test.js")), {}), 150)


async def test_job_watch_survives_a_router_restart(build: Path, tmp_path: Path) -> None:
    async with restarting(tmp_path) as (url, mark):
        environment = {"OCTET_TEST_URL": url, "OCTET_TEST_MARK": str(mark)}
        await run_tests([build / "tests" / "server" / "restart.test.js"], environment)


async def test_api_keys(build: Path) -> None:
    ann, ben, cy = issue_key("ann"), issue_key("ben"), issue_key("cy", requests_per_minute=1)
    async with running_keyed_router([ann, ben, cy]) as fronted:
        environment = {
            "OCTET_TEST_URL": f"http://127.0.0.1:{fronted.port}",
            "OCTET_API_KEY": ann.token,
            "OCTET_TEST_OTHER_KEY": ben.token,
            "OCTET_TEST_POOR_KEY": cy.token,
        }
        await run_tests([build / "tests" / "server" / "keys.test.js"], environment)


@pytest.mark.parametrize("client", ["octet", "jobs", "openai"])
async def test_client_works_against_a_router(build: Path, client: str) -> None:
    async with running_router() as fronted:
        url = f"http://127.0.0.1:{fronted.port}"
        await run_tests([build / "tests" / "server" / f"{client}.test.js"], {"OCTET_TEST_URL": url})
