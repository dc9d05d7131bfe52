"""The CI script names missing packages. Dependencies whose internals we use have an upper version bound."""

import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """The script runs as an ordinary user, without Prometheus or a browser."""
    (tmp_path / "dirname").symlink_to(shutil.which("dirname") or "")
    me = tmp_path / "id"
    me.write_text("#!/bin/sh\necho 1000\n")
    me.chmod(0o755)
    done = subprocess.run(
        [shutil.which("bash") or "", str(ROOT / ".ci" / "run")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "packages chromium prometheus clang fish zsh iproute2, or run this as root" in done.stderr


def test_exporter_has_an_upper_version_bound() -> None:
    """octet/telemetry/trace_export.py overrides methods of the exporter that a later version may rename."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["optional-dependencies"]["otlp"]) == 2
    for requirement in project["optional-dependencies"]["otlp"]:
        assert ",<" in requirement, requirement
