"""A model of the hub is resolved to a commit once, downloaded and checked; later starts need no network."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.annotations import HubReference, parse_hub_reference
from specialist.adapters.adapter import read_adapter
from specialist.models import hub as hub_module
from specialist.models.fields import ModelRefused
from specialist.models.hub import Kind, find_files, model_name
from specialist.models.open import open_checkpoint
from tests.models.gguf_writer import write_gguf
from tests.models.hub_server import Hub, files_of, running_hub
from tests.models.plain import write_adapter, write_model

CODE = {"modeling_tiny.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "README.md": b"# Tiny"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder)
    return files_of(folder)


@dataclass
class Download:
    """Downloads into caches of its own, and remembers what it said and how far it got."""

    hub: Hub
    said: list[str] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, text: str, kind: Kind = "model") -> Path:
        return find_files(text, kind, lambda *step: self.progress.append(step), self.said.append)

    def refused(self, text: str, kind: Kind = "model") -> str:
        with pytest.raises(ModelRefused) as refused:
            self(text, kind)
        return str(refused.value)


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def download(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Download:
    from huggingface_hub import constants

    server.__dict__.update(Hub(server.endpoint, server.storage).__dict__)
    monkeypatch.setenv("OCTET_CACHE", str(tmp_path / "octet"))
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.setattr(constants, name, str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return Download(server)


def connect(monkeypatch: pytest.MonkeyPatch, endpoint: str = "http://127.0.0.1:1") -> None:
    """Set the hub's address, as HF_ENDPOINT does; by default one where nothing listens."""
    from huggingface_hub import constants

    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "models--org--tiny"


def test_only_what_is_needed_is_downloaded_and_opens(download: Download, tiny: dict[str, bytes]) -> None:
    commit = download.hub.repository("org/tiny").commit({**tiny, **CODE})
    path = download("hf:org/tiny")
    assert sorted(each.name for each in path.iterdir()) == sorted(tiny)
    assert model_name(path) == f"org/tiny@{commit[:12]}"
    assert len(open_checkpoint(path).revision) == 64
    (record,) = (path.parents[3] / "octet" / "hub").iterdir()
    assert download.said == [
        f"hf:org/tiny is resolved to the commit {commit}; to pin it, write hf:org/tiny@{commit}",
        f"hf:org/tiny is commit {commit}; delete {record} to take a newer commit",
    ]
    total = sum(map(len, tiny.values()))
    downloaded = [step for step in download.progress if step[0] == "downloading hf:org/tiny"]
    assert downloaded[-1] == ("downloading hf:org/tiny", total, total)
    assert [done for _, done, _ in downloaded] == sorted(done for _, done, _ in downloaded)


def test_later_starts_use_the_recorded_commit_without_a_request(download: Download, tiny: dict[str, bytes]) -> None:
    repository = download.hub.repository("org/tiny")
    repository.commit(tiny)
    path = download("hf:org/tiny")
    newer = repository.commit({**tiny, "generation_config.json": b"{}"})
    download.hub.requests.clear()
    assert download("hf:org/tiny") == path
    assert download.hub.requests == []
    assert download(f"hf:org/tiny@{newer}") == path.parent / newer
    assert download("hf:org/tiny") == path


def test_tag_and_branch_are_resolved_to_their_commit(download: Download, tiny: dict[str, bytes]) -> None:
    repository = download.hub.repository("org/tiny")
    old = repository.commit(tiny, "v1")
    repository.commit({**tiny, "generation_config.json": b"{}"})
    assert download("hf:org/tiny@v1").name == old
    assert download.said[-1].startswith(f"hf:org/tiny@v1 is commit {old}; delete ")
    assert download(f"hf:org/tiny@{old}").name == old
    assert download.said[-1] == f"hf:org/tiny@{old} is commit {old}"


def test_interrupted_file_is_resumed_where_it_was_cut(
    download: Download, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 250)  # what is received is kept in pieces of this size
    commit = download.hub.repository("org/tiny").commit(tiny)
    download.hub.cut["model.safetensors"] = 1000
    path = download("hf:org/tiny")
    assert (path / "model.safetensors").read_bytes() == tiny["model.safetensors"]
    assert f"/blobs/org/tiny/{commit}/model.safetensors bytes=1000-" in download.hub.downloads()


def test_whole_files_of_an_interrupted_download_are_kept(
    download: Download, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = download.hub.repository("org/tiny").commit(tiny)
    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "_check_digests", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            download("hf:org/tiny")
    del download.hub.requests[:]
    (
        next(Path(str(download.hub and path)) for path in [hub_cache() / "snapshots" / commit]) / "tokenizer.json"
    ).unlink()
    download("hf:org/tiny")
    assert download.hub.downloads() == []  # the content is still there


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_damaged_file_is_deleted_and_downloaded_again(download: Download, tiny: dict[str, bytes], name: str) -> None:
    download.hub.repository("org/tiny").commit(tiny)
    download.hub.damaged.add(name)
    message = download.refused("hf:org/tiny")
    assert message.startswith(f"hf:org/tiny: {name} has the digest ")
    assert message.endswith("the damaged file is deleted; start again to download it")
    download.hub.damaged.clear()
    assert (download("hf:org/tiny") / name).read_bytes() == tiny[name]


def test_lost_file_is_fetched_at_the_recorded_commit(download: Download, tiny: dict[str, bytes]) -> None:
    repository = download.hub.repository("org/tiny")
    old = repository.commit(tiny)
    path = download("hf:org/tiny")
    repository.commit({**tiny, "generation_config.json": b"{}"})
    (path / "config.json").resolve().unlink()
    (path / "config.json").unlink()
    assert download("hf:org/tiny") == path
    assert path.name == old
    assert (path / "config.json").read_bytes() == tiny["config.json"]


def test_without_network_and_cache_the_remedy_is_said(download: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch)
    from huggingface_hub import constants

    message = download.refused("hf:org/tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cannot be reached" in download.refused("hf:org/tiny")
    assert message.startswith("hf:org/tiny: http://127.0.0.1:1 cannot be reached (")
    assert message.endswith("connect once to download them, or copy that folder from a machine that has them")


@pytest.mark.parametrize("kept", ["config.json", "model.safetensors.index.json"])
def test_without_network_a_partial_cache_is_not_taken_for_the_hub(
    download: Download, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    from huggingface_hub import hf_hub_download

    index = json.dumps({"weight_map": {"a": "shard-1.safetensors"}}).encode()
    files = {name: content for name, content in tiny.items() if not name.endswith(".safetensors")}
    download.hub.repository("org/tiny").commit(
        {**files, "model.safetensors.index.json": index, "shard-1.safetensors": b"x"}
    )
    for name in {kept, "config.json", "tokenizer.json"}:
        hf_hub_download("org/tiny", name)
    connect(monkeypatch)
    message = download.refused("hf:org/tiny")
    assert message.startswith("hf:org/tiny: http://127.0.0.1:1 cannot be reached (")
    assert "does not hold the files: connect once" in message
    assert "does not hold the files" in download.refused("hf:org/tiny/tiny.gguf")


def test_without_network_the_cache_of_other_tools_is_used(
    download: Download, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    commit = download.hub.repository("org/tiny").commit(tiny)
    snapshot_download("org/tiny")
    connect(monkeypatch)
    assert download("hf:org/tiny").name == commit
    (hub_cache() / "snapshots" / commit / "tokenizer.json").resolve().write_text("{}")
    (hub_cache().parents[1] / "octet").rename(hub_cache().parents[1] / "moved")
    assert download.refused("hf:org/tiny").startswith("hf:org/tiny: tokenizer.json has the digest ")


def test_unusable_repositories_are_refused_with_a_remedy(download: Download, tiny: dict[str, bytes]) -> None:
    hub = download.hub
    page = f"{hub.endpoint}/org"
    assert download.refused("hf:org/none").startswith(f"hf:org/none: {page}/none does not exist, or is private: ")
    hub.repository("org/gated").commit(tiny)
    hub.gated.add("org/gated")
    message = "it is gated: accept its terms at {page}/gated, then set HF_TOKEN to a token of that account"
    assert download.refused("hf:org/gated") == f"hf:org/gated: {message.format(page=page)}"
    hub.repository("org/tiny").commit(tiny)
    assert "there is no such revision" in download.refused("hf:org/tiny@v9")
    without = {name: content for name, content in tiny.items() if name != "model.safetensors"}
    hub.repository("org/pickle").commit({**without, "pytorch_model.bin": b"x"})
    assert "pytorch_model.bin is a pickle, which is never read" in download.refused("hf:org/pickle")
    hub.repository("org/gguf").commit({"a.Q4.gguf": b"GGUF"})
    assert "write hf:org/gguf/a.Q4.gguf for its GGUF file" in download.refused("hf:org/gguf")
    assert "there is no such model; write hf:org/gguf/a.Q4.gguf" in download.refused("hf:org/gguf/b.gguf")
    assert "it has no adapter_config.json" in download.refused("hf:org/tiny", "adapter")


def test_token_opens_a_gated_repository(
    download: Download, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    download.hub.repository("org/gated").commit(tiny)
    download.hub.gated.add("org/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert download("hf:org/gated").is_dir()


def test_full_disk_is_said_before_the_download(
    download: Download, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    download.hub.repository("org/tiny").commit(tiny)
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = download.refused("hf:org/tiny")
    assert f"({sum(map(len, tiny.values())):,} bytes are needed, 10 are free): make room, or set HF_HOME" in message
    assert download.hub.downloads() == []


def test_shards_come_from_the_index(download: Download, tiny: dict[str, bytes]) -> None:
    index = {"weight_map": {"a": "model-1.safetensors"}}
    shards = {"model.safetensors.index.json": json.dumps(index).encode(), "model-1.safetensors": b"1"}
    rest = {name: content for name, content in tiny.items() if name != "model.safetensors"}
    download.hub.repository("org/tiny").commit({**rest, **shards, "consolidated.safetensors": b"twice"})
    assert {each.name for each in download("hf:org/tiny").iterdir()} == {*rest, *shards}
    wrong = {**shards, "model.safetensors.index.json": json.dumps({"weight_map": {"a": "../../x"}}).encode()}
    download.hub.repository("org/wrong").commit({**rest, **wrong})
    assert "names '../../x', which is not one of its weight files" in download.refused("hf:org/wrong")


def test_gguf_file_and_adapter(download: Download, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama"}, {})
    files = {"Q4/a.gguf": (tmp_path / "a.gguf").read_bytes(), "Q4/b.gguf": b"GGUF"}
    download.hub.repository("org/gguf").commit(files)
    path = download("hf:org/gguf/Q4/a.gguf")
    assert path.read_bytes() == files["Q4/a.gguf"]
    assert not (path.parent / "b.gguf").exists()
    assert model_name(path) == "a.gguf"
    config = write_model(tmp_path / "model")
    written = write_adapter(tmp_path / "lora", config)
    download.hub.repository("org/lora").commit({**files_of(written), "training_args.bin": b"pickle"})
    found = download("hf:org/lora", "adapter")
    assert read_adapter(found, config).digest == read_adapter(written, config).digest
    assert not (found / "training_args.bin").exists()


def test_missing_extra_is_said_with_its_command(download: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "huggingface_hub":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    message = download.refused("hf:org/tiny")
    assert "huggingface_hub is not installed; install it with: pip install " in message
    assert "[hf]" in message


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)


@given(
    NAMES,
    NAMES,
    st.sampled_from(["", "a.gguf", "deep/er/b-Q4_K.gguf"]),
    st.sampled_from(["", "main", "a" * 40, "refs/pr/1"]),
)
def test_reference_is_read_as_it_is_written(organisation: str, name: str, file: str, revision: str) -> None:
    reference = HubReference(f"{organisation}/{name}", file, revision)
    assert parse_hub_reference(str(reference)) == reference


@pytest.mark.parametrize(
    "text", ["hf:", "hf:x", "hf:a/b/c", "hf:a/../b", "hf:a/b@", "hf:a/b/../c.gguf", "hf:a/b c", "hf:a/b@x y"]
)
def test_wrong_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hf:ORG/NAME"):
        parse_hub_reference(text)
