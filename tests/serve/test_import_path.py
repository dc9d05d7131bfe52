"""Octet never imports a file from the folder in which it is started.

The folder holds the checkout under the name `octet`, and modules with the names of our packages, of libraries
and of the standard library. Each module creates a marker file when it is imported. Octet is installed as
`pip install -e` would install it.
"""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import pytest

from tests.patience import PATIENCE
from tests.serve.ensemble import ROOT, TWO

FOREIGN = ("json", "router", "specialist", "admission", "grpc", "yaml", "pip")
_MARK = "import pathlib; pathlib.Path({mark!r}).touch(); raise SystemExit('foreign code was run')\n"
_SCRIPT = "import sys\nfrom octet.cli import main\nsys.exit(main())\n"
_BUILD = "import sys; from setuptools.build_meta import build_editable; print(build_editable(sys.argv[1]))"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter in which this checkout, in a folder named `octet`, is an editable install."""
    folder = tmp_path_factory.mktemp("installed")
    checkout = folder / "octet"
    checkout.symlink_to(ROOT, target_is_directory=True)
    wheels = folder / "wheels"
    wheels.mkdir()
    source = folder / "source"  # A copy is needed because setuptools writes next to pyproject.toml.
    source.mkdir()
    for each in (*(path for path in ROOT.iterdir() if (path / "__init__.py").is_file()), ROOT / "README.md"):
        (source / each.name).symlink_to(each)
    for name in ("pyproject.toml", "LICENSE"):
        (source / name).write_text((ROOT / name).read_text())
    subprocess.run([sys.executable, "-c", _BUILD, str(wheels)], cwd=source, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (wheel,) = wheels.iterdir()
    zipfile.ZipFile(wheel).extractall(site)
    for pth in site.glob("*.pth"):
        pth.write_text(pth.read_text().replace(str(source), str(checkout)))
    for module in site.glob("__editable__*.py"):
        module.write_text(module.read_text().replace(str(source), str(checkout)))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def foreign(python: Path) -> Iterator[Path]:
    """Yield the folder that holds the checkout and the foreign modules."""
    folder = python.parents[2]
    for name in FOREIGN:
        (folder / f"{name}.py").write_text(_MARK.format(mark=str(folder / f"{name}.mark")))
    yield folder
    for name in FOREIGN:
        (folder / f"{name}.py").unlink()


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "XDG_RUNTIME_DIR": "", "TMPDIR": "/tmp"}  # noqa: S108


def test_a_script_beside_the_checkout_imports_the_package(python: Path) -> None:
    script = python.parents[2] / "script.py"
    script.write_text("import octet, octet.cli\nfrom octet import Client\nprint(octet.__file__)\n")
    done = subprocess.run(
        [python, script.name], cwd=script.parent, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == ROOT / "octet" / "__init__.py"


def test_serving_from_a_foreign_folder_imports_nothing_there(python: Path, foreign: Path) -> None:
    command = python.parent / "octet"
    command.write_text(f"#!{python}\n{_SCRIPT}")
    command.chmod(0o755)
    with TemporaryDirectory(dir="/tmp") as folder:
        file = Path(folder) / "two.yaml"
        file.write_text(TWO)
        with subprocess.Popen(
            [command, "serve", str(file), "--port", "0", "--no-http", "--hang", "60"],
            cwd=foreign,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as served:
            assert served.stdout is not None
            output = ""
            limit = Timer(PATIENCE, served.kill)
            limit.start()
            while "octet ready on" not in output and (line := served.stdout.readline()):
                output += line
            served.terminate()
            output += served.stdout.read()
            status = served.wait(PATIENCE)
            limit.cancel()
    assert list(foreign.glob("*.mark")) == [], output
    assert "octet ready on" in output and status == 0, output


def test_every_started_python_has_a_safe_import_path() -> None:
    """The options `-P` and `-I` keep the working directory out of the import path."""
    for package in ("octet", "router", "specialist", "simulation"):
        for file in (ROOT / package).rglob("*.py"):
            for option in re.findall(r"sys\.executable,\s*\"([^\"]+)\"", file.read_text()):
                assert option in ("-P", "-I"), file
