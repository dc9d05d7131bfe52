"""The command `octet keys` with real files."""

import json
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from octet.cli import main
from router.api.keys.key_file import KeysFile
from router.api.keys.keys import Key, KeySet
from tests.patience import PATIENCE
from tests.router.keys.keyed import issue_key


def octet(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["keys", *arguments])
    output = capsys.readouterr()
    return status, output.out, output.err


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("OCTET_KEYS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "keys.json"


def test_key_is_printed_once_and_only_its_digest_is_stored(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    status, out, err = octet(capsys, "new", "ann", "--role", "call", "--requests-per-minute", "60")
    token = out.strip()
    assert status == 0 and token.startswith("octet_") and "not shown again" in err
    assert f"started with --keys {elsewhere}, or with this path in router.keys or OCTET_KEYS, accepts it" in err
    kept = elsewhere.read_text()
    assert token not in kept and sha256(token.encode()).hexdigest() in kept
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600
    assert KeySet(KeysFile(elsewhere).read()).find(token.encode(), 0) is not None
    status, out, _ = octet(capsys, "list")
    assert status == 0 and "ann" in out and "60" in out and token not in out
    assert sha256(token.encode()).hexdigest() not in out


def test_keys_commands_as_json(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    options = ["--role", "operate", "--tokens-per-minute", "9", "--concurrency", "2", "--tenant", "team"]
    status, out, err = octet(capsys, "new", "ops", *options, "--expires", "2999-01-31", "--json")
    printed: dict[str, Any] = json.loads(out)
    token = printed.pop("key")
    assert status == 0 and not err and token.startswith("octet_")
    created = printed.pop("created")
    assert printed == {
        "name": "ops",
        "role": "operate",
        "tenant": "team",
        "tokens_per_minute": 9,
        "concurrency": 2,
        "expires": "2999-01-31T00:00:00Z",
        "file": "keys.json",
    }
    printed.pop("file")
    assert json.loads(octet(capsys, "list", "--json")[1])["keys"] == [printed | {"created": created}]
    assert json.loads(octet(capsys, "revoke", "ops", "--json")[1]) == {"revoked": "ops", "file": "keys.json"}
    assert json.loads(octet(capsys, "list", "--json")[1])["keys"] == []
    assert KeySet(KeysFile(elsewhere).read()).find(token.encode(), 0) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "Ann", "--role", "call"), "NAME must be a name of lower-case letters"),
        (("new", "bob", "--role", "call"), "the key 'bob' already exists"),
        (("new", "ann", "--role", "call", "--concurrency", "0"), "--concurrency must be a whole number in [1,"),
        (("new", "ann", "--role", "call", "--expires", "then"), "--expires must be a date such as"),
        (("new", "ann", "--role", "call", "--expires", "2001-01-01"), "--expires must be in the future"),
        (("new", "ann", "--role", "call", "--tenant", "a b"), "--tenant must be a name"),
        (("revoke", "ann"), "there is no key 'ann'"),
        (("list", "--file", "absent.json"), "absent.json"),
        (("revoke", "bob", "--file", "absent.json"), "there is no file absent.json"),
        (("new", "ann", "--role", "call", "--file", "no/folder/keys.json"), "no/folder"),
    ],
)
def test_invalid_arguments_change_nothing(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert octet(capsys, "new", "bob", "--role", "call")[0] == 0
    before = elsewhere.read_bytes()
    status, out, err = octet(capsys, *arguments)
    assert status == 2 and message in err and not out
    assert elsewhere.read_bytes() == before


def test_environment_names_the_key_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCTET_KEYS", str(tmp_path / "other.json"))
    assert octet(capsys, "new", "ann", "--role", "call")[0] == 0
    assert (tmp_path / "other.json").exists()
    monkeypatch.setenv("OCTET_KEYS", '{"keys": []}')
    status, _, err = octet(capsys, "new", "bob", "--role", "call")
    assert status == 2 and "name a file with --file" in err


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620, 0o664])
def test_key_file_writable_by_others_is_refused(capsys: pytest.CaptureFixture[str], elsewhere: Path, mode: int) -> None:
    assert octet(capsys, "new", "ann", "--role", "call")[0] == 0
    elsewhere.chmod(mode)
    status, _, err = octet(capsys, "list")
    assert status == 2 and "chmod go-w" in err
    elsewhere.chmod(mode & 0o755)
    assert octet(capsys, "list")[0] == 0


def test_writers_through_different_links_exclude_each_other(tmp_path: Path) -> None:
    real, links = tmp_path / "real", [tmp_path / "one", tmp_path / "two"]
    for folder in (real, *links):
        folder.mkdir()
    for folder in links:
        (folder / "keys.json").symlink_to(real / "keys.json")
    began, ends = Event(), Event()

    def slowly(keys: tuple[Key, ...]) -> tuple[Key, ...]:
        began.set()
        ends.wait(PATIENCE)
        return (*keys, issue_key("slow").key)

    first, second = (KeysFile(folder / "keys.json") for folder in links)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(first.change, slowly)
        assert began.wait(PATIENCE)
        quick = pool.submit(second.change, lambda keys: (*keys, issue_key("quick").key))
        time.sleep(0.2)
        assert not quick.done()
        ends.set()
        slow.result(PATIENCE)
        quick.result(PATIENCE)
    assert [key.name for key in KeysFile(real / "keys.json").read()] == ["slow", "quick"]
    assert all((folder / "keys.json").is_symlink() for folder in links)


def test_changes_are_synced_to_disk_with_their_folder(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []
    sync = os.fsync

    def syncing(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), elsewhere.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    KeysFile(elsewhere).change(lambda _: (issue_key("ann").key,))
    assert synced == [(False, False), (True, True)], "the content must be on the disk before the folder entry"


def test_concurrent_writers_lose_no_key(elsewhere: Path) -> None:
    script = (
        "import sys; from octet.cli import main; "
        "sys.exit(max(main(['keys', 'new', f'{sys.argv[1]}-{n}', '--role', 'call']) for n in range(4)))"
    )
    command = [sys.executable, "-c", script]
    running = [
        subprocess.Popen([*command, name], cwd=elsewhere.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("a", "b", "c")
    ]
    assert [process.wait(PATIENCE) for process in running] == [0, 0, 0]
    assert len(KeysFile(elsewhere).read()) == 12
    assert [path.name for path in elsewhere.parent.iterdir()] == ["keys.json"]


def test_replaced_key_file_keeps_its_permissions(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    octet(capsys, "new", "ann", "--role", "call")
    elsewhere.chmod(0o640)
    group = elsewhere.stat().st_gid
    if os.geteuid() == 0:
        group = 12345
        os.chown(elsewhere, 0, group)
    precious = elsewhere.with_name("precious")
    precious.write_text("kept")
    elsewhere.with_name(f".keys.json.{os.getpid()}").symlink_to(precious)
    assert octet(capsys, "revoke", "ann")[0] == 0
    there = elsewhere.stat()
    assert (stat.S_IMODE(there.st_mode), there.st_gid) == (0o640, group)
    assert precious.read_text() == "kept"
