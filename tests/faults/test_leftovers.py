"""A run removes networks and cgroups that killed runs have left behind, and no others."""

import os
import re
from pathlib import Path

import pytest

from tests.faults import cgroups
from tests.faults.commands import run
from tests.faults.network import virtual_links, why_no_virtual_links
from tests.forbidden import FORM, NO_SKIP, forbidden, may_skip, note_missing

UNUSED_PID = 4_194_304
"""No process has this id: it is one more than the largest possible id."""


def test_networks_and_routes_of_dead_processes_are_removed() -> None:
    if reason := why_no_virtual_links():
        pytest.skip(reason)
    stale, route = f"of{UNUSED_PID}-0", "10.64.128.2"
    run("ip", "netns", "add", stale)
    run("ip", "route", "add", "blackhole", f"{route}/32", "proto", "88")
    with virtual_links(1) as (first,):
        assert stale not in run("ip", "netns", "list") and route not in run("ip", "route", "show")
        first.deafen()
        with virtual_links(1):
            assert first.name in run("ip", "netns", "list") and f"blackhole {first.there}" in run("ip", "route", "show")
        first.undeafen()
    assert not re.findall(rf"of{os.getpid()}-", run("ip", "netns", "list"))


def test_cgroups_of_dead_processes_are_removed() -> None:
    if reason := cgroups.why_no_cgroups("cpu"):
        pytest.skip(reason)
    with cgroups.cgroup("cpu") as mine:
        stale = mine.folder.with_name(f"octet-faults-{UNUSED_PID}-0")
        stale.mkdir()
        with cgroups.cgroup("cpu"):
            assert not stale.exists() and mine.folder.exists()


def test_only_what_the_machine_forbids_may_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORM, raising=False)
    monkeypatch.delenv(NO_SKIP, raising=False)
    assert may_skip("not installed: ip")
    monkeypatch.setenv(NO_SKIP, "1")
    assert not may_skip("not installed: ip") and may_skip(forbidden("Operation not permitted"))
    with pytest.raises(pytest.fail.Exception, match="not installed: ip"):
        note_missing("not installed: ip")
    monkeypatch.setenv(FORM, "long")
    assert not may_skip(forbidden("Operation not permitted"))


def test_read_only_cgroups_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plain file takes the place of the `cpu` folder, so that no group can be created in it."""
    (tmp_path / "cpu").write_text("")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    reason = cgroups.why_no_cgroups("cpu")
    assert "no cgroup can be made" in reason or "only root" in reason
