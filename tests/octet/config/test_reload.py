"""A router reloads its file completely or not at all, and never while it is being written."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from octet.config.loader import read_ensemble
from octet.config.reload import ConfigWatch, Reloaded, ReloadEvent, ReloadRefused
from simulation.event_loop import HeapLoop
from tests.patience import PATIENCE

OLD = "specialists:\n  sql: {system: old}\n  shell:\nrules:\n  - {name: a, specialist: sql, contains: [SELECT]}\n"
NEW = OLD.replace("system: old", "system: new")
INTERVAL, SETTLE = 0.02, 0.05
LONG = 0.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(OLD)
    return path


class FollowedConfig:
    def __init__(self, path: Path, watch: ConfigWatch) -> None:
        self.path = path
        self.watch = watch
        self.events: asyncio.Queue[ReloadEvent] = asyncio.Queue()

    async def run(self) -> None:
        async for event in self.watch.events():
            self.events.put_nowait(event)

    async def next(self) -> ReloadEvent:
        return await asyncio.wait_for(self.events.get(), PATIENCE)

    async def reloaded(self) -> Reloaded:
        event = await self.next()
        assert isinstance(event, Reloaded), event
        return event

    async def refused(self) -> str:
        event = await self.next()
        assert isinstance(event, ReloadRefused), event
        return event.why

    async def nothing(self) -> None:
        """Wait long enough for a reload, and check that there was none."""
        await asyncio.sleep(2 * INTERVAL + 3 * SETTLE)
        assert self.events.empty(), self.events.get_nowait()

    def replace(self, text: str) -> None:
        """Replace the file in one step, as most editors do."""
        beside = self.path.with_suffix(".tmp")
        beside.write_text(text)
        beside.replace(self.path)


@asynccontextmanager
async def following(path: Path, settle: float, interval: float = INTERVAL) -> AsyncIterator[FollowedConfig]:
    watch = ConfigWatch(path, read_ensemble(path), interval=interval, settle=settle)
    followed = FollowedConfig(path, watch)
    task = asyncio.create_task(followed.run())
    try:
        yield followed
        assert not task.done(), "a watch must not end"
    finally:
        task.cancel()


def follow(
    path: Path,
    scenario: Callable[[FollowedConfig], Awaitable[None]],
    settle: float = SETTLE,
    interval: float = INTERVAL,
) -> None:
    """Run the scenario in simulated time, so that a busy machine has no effect."""

    async def main() -> None:
        async with following(path, settle, interval) as followed:
            await scenario(followed)

    loop = HeapLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_replaced_file_is_reloaded(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        followed.replace(NEW)
        event = await followed.reloaded()
        assert event.changed == ("specialists.sql.system",)
        assert event.ensemble == read_ensemble(path)
        followed.replace(OLD)
        assert (await followed.reloaded()).ensemble.specialist("sql").system == "old"

    follow(path, scenario)


def test_file_written_in_place_is_reloaded_once_complete(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        text = NEW + "  - {name: b, specialist: shell, contains: ['#!']}\n"
        with path.open("w") as file:
            for line in text.splitlines(keepends=True):
                file.write(line)
                file.flush()
                await asyncio.sleep(2 * INTERVAL)
        event = await followed.reloaded()
        assert [rule.name for rule in event.ensemble.rules] == ["a", "b"]
        await followed.nothing()

    follow(path, scenario, settle=LONG)


def test_invalid_file_is_refused_once(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        followed.replace(NEW + "rules: []\nintents: {q: absent}\n")
        why = await followed.refused()
        assert why.splitlines() == [
            f"{path}:6: the key 'rules' is already on line 4: keep one of them",
            f"{path}:7: intents.q.specialist names an unknown specialist 'absent': known here: sql, shell",
        ]
        path.touch()
        await followed.nothing()
        followed.watch.nudge()
        assert await followed.refused() == why
        followed.replace(NEW)
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(path, scenario)


def test_change_that_needs_a_restart_refuses_the_whole_file(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        followed.replace(NEW + "block_size: 8\nrouter: {port: 1}\n")
        assert (await followed.refused()).endswith(
            "these keys need a restart to change: specialists.sql.block_size, specialists.shell.block_size, router.port"
        )
        followed.replace(NEW)
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(path, scenario)


async def test_refused_reload_is_not_the_base_of_the_next(path: Path) -> None:
    """After a refused reload, changes are still reported relative to the configuration in force."""
    watch = ConfigWatch(path, read_ensemble(path), interval=INTERVAL, settle=SETTLE)
    events = watch.events()

    async def reloaded() -> Reloaded:
        event = await asyncio.wait_for(anext(events), PATIENCE)
        assert isinstance(event, Reloaded)
        return event

    path.write_text(NEW + "dispatch: {failures: 4}\n")
    both = ("specialists.sql.system", "dispatch.failures")
    assert sorted((await reloaded()).changed) == sorted(both)
    watch.refused()
    watch.nudge()
    assert sorted((await reloaded()).changed) == sorted(both), "a nudge must report the change again"
    watch.refused()
    path.write_text(NEW)
    assert (await reloaded()).changed == ("specialists.sql.system",)
    path.write_text(OLD + "dispatch: {failures: 4}\n")
    assert sorted((await reloaded()).changed) == sorted(both)
    watch.refused()
    path.write_text(OLD)
    assert (await reloaded()).changed == ("specialists.sql.system",), "the refused configuration was never in force"


def test_equal_content_is_no_event(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        path.touch()
        await followed.nothing()
        followed.replace(OLD)
        await followed.nothing()
        followed.replace("# a comment\n" + OLD)
        followed.watch.nudge()
        await followed.nothing()

    follow(path, scenario)


def test_missing_file_is_reported_once_and_watched_again(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        path.unlink()
        assert "No such file or directory; the previous configuration stays in force" in await followed.refused()
        await followed.nothing()
        path.write_text(OLD)
        await followed.nothing()
        path.unlink()
        assert "No such file" in await followed.refused()
        path.write_text(NEW)
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(path, scenario)


def test_short_absence_is_ignored(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        await followed.nothing()
        path.rename(path.with_suffix(".bak"))
        await asyncio.sleep(2 * INTERVAL)
        path.write_text(NEW)
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(path, scenario, settle=LONG)


def test_relinked_file_is_reloaded(tmp_path: Path, path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    (tmp_path / "new.yaml").write_text(NEW)

    async def scenario(followed: FollowedConfig) -> None:
        beside = tmp_path / "other"
        beside.symlink_to(tmp_path / "new.yaml")
        beside.replace(link)
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(link, scenario)


def test_edit_with_same_time_and_size_is_noticed(path: Path) -> None:
    """The test uses real time, because the kernel's change time of the file must differ."""

    async def scenario() -> None:
        async with following(path, SETTLE) as followed:
            await followed.nothing()
            before = path.stat()
            path.write_text(NEW)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert len(NEW) == len(OLD)
            assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    asyncio.run(scenario())


def test_pipe_or_folder_is_refused_without_blocking(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        path.unlink()
        os.mkfifo(path)
        assert "not a regular file" in await followed.refused()
        path.unlink()
        path.mkdir()
        assert "not a regular file" in await followed.refused()
        shutil.rmtree(path)
        path.write_text(NEW)
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(path, scenario)


def test_nudge_checks_at_once(path: Path) -> None:
    async def scenario(followed: FollowedConfig) -> None:
        await followed.nothing()
        path.write_text(NEW)
        await followed.nothing()
        followed.watch.nudge()
        assert (await followed.reloaded()).changed == ("specialists.sql.system",)

    follow(path, scenario, interval=3600)


def test_a_change_between_reading_and_watching_is_not_missed(path: Path) -> None:
    file = ConfigWatch(path, read_ensemble(path))
    path.write_text(NEW)
    assert not file.look()
    assert file.look()
    assert isinstance(file.read(), Reloaded)
    assert file.look()
    assert file.read() is None


def test_file_that_changes_during_reading_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ConfigWatch(path, read_ensemble(path))
    path.write_text(NEW)
    assert (file.look(), file.look()) == (False, True)
    import octet.config.reload as module

    def reading(path: Path) -> bytes:
        path.write_text(OLD + "# longer\n")
        return NEW.encode()

    with monkeypatch.context() as patched:
        patched.setattr(module, "read_content", reading)
        assert file.read() is None
    assert not file.look()
    assert file.look()
    assert file.read() is None
    assert file.current.specialist("sql").system == "old"
