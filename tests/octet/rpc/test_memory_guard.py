"""New work is refused before memory runs out, under both cgroup versions."""

from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.rpc.memory import FULL, MEMORY_LIMITS_VARIABLE, TIGHT, MemoryGuard, MemoryLimits, MemoryUsage, memory_reader
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2

LIMIT = 1 << 30


def refuses(guard: MemoryGuard, *, can_wait: bool) -> bool:
    try:
        guard.check(can_wait=can_wait)
    except Refusal:
        return True
    return False


@given(used=st.integers(0, 2 * LIMIT))
def test_deferrable_work_is_refused_first_and_then_all_work(used: int) -> None:
    memory = MemoryUsage(used, LIMIT)
    guard = MemoryGuard(lambda: memory, ManualClock())
    assert refuses(guard, can_wait=True) == (used / LIMIT >= TIGHT)
    assert refuses(guard, can_wait=False) == (used / LIMIT >= FULL)


@pytest.mark.parametrize(
    ("given", "waiting", "any_work"),
    [("", TIGHT, FULL), ("0.5,0.75", 0.5, 0.75), ("1,1", 1.0, 1.0), ("off", 3.0, 3.0)],
)
def test_the_environment_moves_the_limits(given: str, waiting: float, any_work: float) -> None:
    limits = MemoryLimits.from_environment({MEMORY_LIMITS_VARIABLE: given})
    for share in (0.4, 0.5, 0.6, 0.75, 0.93, 0.96, 1.0, 2.0):
        memory = MemoryUsage(round(share * LIMIT), LIMIT)
        guard = MemoryGuard([memory].pop, ManualClock(), limits)
        assert guard.share == pytest.approx(share)
        assert refuses(guard, can_wait=True) == (share >= waiting)
        assert refuses(guard, can_wait=False) == (share >= any_work)


@pytest.mark.parametrize("given", ["0.9", "0.95,0.9", "0,0.5", "0.9,1.1", "nan,nan", "on", "0.1,0.2,0.3"])
def test_invalid_memory_limits_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match="OCTET_MEMORY_LIMITS must be off, or two shares"):
        MemoryLimits.from_environment({MEMORY_LIMITS_VARIABLE: given})


@pytest.mark.parametrize(("share", "warns"), [(0.5, False), (TIGHT, True)])
def test_warns_if_work_would_be_refused_at_the_start(
    share: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    MemoryGuard(lambda: MemoryUsage(round(share * LIMIT) + 1, LIMIT), ManualClock()).warn()
    assert ("new work is refused above 92%" in caplog.text) is warns


def test_without_a_limit_nothing_is_refused() -> None:
    guard = MemoryGuard(lambda: None, ManualClock())
    guard.warn()
    assert not refuses(guard, can_wait=True) and guard.share is None


def test_memory_refusal_names_the_limit_and_a_retry_after() -> None:
    guard = MemoryGuard(lambda: MemoryUsage(LIMIT, LIMIT), ManualClock())
    with pytest.raises(Refusal, match="100% of its memory limit of 1,024 MiB") as refusal:
        guard.check(can_wait=False)
    error = refusal.value.error
    assert refusal.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (error.reason, error.field) == (error_pb2.ERROR_REASON_QUEUE_FULL, "memory")
    assert "95% " in error.limit and "1,024 MiB" in error.limit and error.retry_after_ms > 0


def test_memory_is_read_once_a_second() -> None:
    clock, readings = ManualClock(), [MemoryUsage(0, LIMIT), MemoryUsage(LIMIT, LIMIT), MemoryUsage(0, LIMIT)]
    guard = MemoryGuard(readings.pop, clock)
    for refused, left in ((False, 2), (True, 1), (False, 0)):
        for _ in range(3):
            clock.sleep(0.3)
            assert refuses(guard, can_wait=False) == refused
            assert len(readings) == left
        clock.sleep(0.3)


def v1(folder: Path, used: int, limit: int, files: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {files}\ntotal_active_file {files}\n")


def v2(folder: Path, used: int, limit: str, files: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {files}\nactive_file {files}\n")


def read(tmp_path: Path, own: str) -> MemoryUsage | None:
    (tmp_path / "own").write_text(own)
    return memory_reader(tmp_path / "own", tmp_path / "cgroup")()


def test_cgroup_v1_is_read_without_the_page_cache(tmp_path: Path) -> None:
    v1(tmp_path / "cgroup/memory", 10**9, 9223372036854771712)
    v1(tmp_path / "cgroup/memory/a", 900, 1000, files=100)
    own = "8:pids:/\n4:memory:/a\n0::/\n"
    assert read(tmp_path, own) == MemoryUsage(700, 1000)
    assert read(tmp_path, "4:cpu,memory:/a\n") == MemoryUsage(700, 1000)
    assert read(tmp_path, "4:memory:/\n") is None


def test_cgroup_v2_is_read_without_the_page_cache(tmp_path: Path) -> None:
    v2(tmp_path / "cgroup/a", 900, "1000", files=100)
    assert read(tmp_path, "0::/a\n") == MemoryUsage(700, 1000)
    v2(tmp_path / "cgroup/a", 900, "max")
    assert read(tmp_path, "0::/a\n") is None


def test_tightest_limit_of_the_hierarchy_applies(tmp_path: Path) -> None:
    v2(tmp_path / "cgroup/a", 900, "1000")
    v2(tmp_path / "cgroup/a/b", 200, "500")
    assert read(tmp_path, "0::/a/b\n") == MemoryUsage(900, 1000)


def test_container_sees_only_the_root_cgroup(tmp_path: Path) -> None:
    v1(tmp_path / "cgroup/memory", 900, 1000)
    assert read(tmp_path, "4:memory:/docker/0123\n") == MemoryUsage(900, 1000)


def test_no_cgroups_means_no_limit(tmp_path: Path) -> None:
    assert memory_reader(tmp_path / "own", tmp_path / "cgroup")() is None
    assert read(tmp_path, "0::/a\n") is None
