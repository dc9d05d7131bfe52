"""What CI runs says what it lacks, and what is built on others' private parts is bound to what it was tried with."""

import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_who_may_install_nothing_is_told_what_to_install(tmp_path: Path) -> None:
    """Where there is no Prometheus, no browser, and nobody is root."""
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


def test_the_exporter_is_bound() -> None:
    """octet/telemetry/otlp.py overrides what the next version may call otherwise."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["optional-dependencies"]["otlp"]) == 2
    for requirement in project["optional-dependencies"]["otlp"]:
        assert ",<" in requirement, requirement
