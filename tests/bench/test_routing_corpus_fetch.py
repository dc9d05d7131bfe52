"""Sources of packages come from this machine's own lists, with its signature checks."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.routing_corpus import fetch

HOSTS = st.sampled_from(["http://mirror.example/debian", "file:/srv/debian", "https://deb.example/x"])
OPTIONS = st.sampled_from(["", "[signed-by=/usr/share/keyrings/a.gpg] ", "[arch=amd64 signed-by=/k.gpg] "])


def listed(folder: Path, name: str, text: str) -> str:
    parts = folder / "sources.list.d"
    parts.mkdir(exist_ok=True)
    (parts / name).write_text(text)
    return fetch.list_sources(folder)[name]


@given(st.lists(st.tuples(st.sampled_from(["deb", "deb-src", "# deb"]), OPTIONS, HOSTS)))
def test_every_line_keeps_its_host_and_its_key(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    lines = [f"{kind} {options}{host} bookworm main" for kind, options, host in rows]
    found = listed(tmp_path_factory.mktemp("apt"), "a.list", "\n".join(lines))
    expected = [line.replace("deb ", "deb-src ", 1) if line.startswith("deb ") else line for line in lines]
    assert found == "\n".join(expected)


@given(st.sampled_from(["deb", "deb deb-src", "deb-src", "\n deb\n deb-src"]), HOSTS)
def test_every_stanza_keeps_its_host_and_its_key(
    tmp_path_factory: pytest.TempPathFactory, kinds: str, host: str
) -> None:
    rest = f"URIs: {host}\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/a.gpg\n"
    stanza = f"Types: {kinds}\n{rest}"
    folder = tmp_path_factory.mktemp("apt")
    found = listed(folder, "a.sources", f"{stanza}\n{stanza}")
    assert found == "\n".join([f"Types: deb-src\n{rest}"] * 2)


def test_other_files_are_left_out(tmp_path: Path) -> None:
    assert listed(tmp_path, "a.list", "") == ""
    (tmp_path / "sources.list.d" / "a.list.disabled").write_text("deb x y z")
    (tmp_path / "sources.list").write_text("deb http://h s m")
    assert fetch.list_sources(tmp_path) == {"a.list": "", "sources.list": "deb-src http://h s m"}


def test_no_host_is_named_and_no_check_is_off() -> None:
    text = Path(fetch.__file__).read_text()
    assert "://" not in text and "trusted" not in text and "llow-unauth" not in text.lower()
