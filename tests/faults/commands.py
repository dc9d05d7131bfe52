"""Commands of the operating system, and what says that they cannot be used here."""

import os
import shutil
import subprocess

import pytest


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


def need(*programs: str, root: bool = False) -> None:
    """Skips the test where one of them is missing."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if root and os.geteuid() != 0:
        pytest.skip("only root makes networks, mounts and cgroups")
