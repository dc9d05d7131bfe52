"""Models and adapters of the Hugging Face hub: resolved to a commit once, downloaded, checked, then used offline."""

import errno
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from octet.config.annotations import HubReference, parse_hub_reference
from octet.config.ensemble import DEMO_MODEL
from octet.terminal import install_hint
from specialist.models.demo import CHUNK, cache_directory, demo_model
from specialist.models.fields import ModelRefused
from specialist.models.progress import Progress, silent

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
VOCABULARY_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
Kind = Literal["model", "adapter"]
Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def find_model(model: str, progress: Progress = silent, say: Say = say_on_stderr) -> Path:
    """Return the model's path; a model of the hub, or the demo model, is downloaded first. Raises ModelRefused."""
    if model == DEMO_MODEL:
        return demo_model(cache_directory(), progress)
    return find_files(model, "model", progress, say)


def find_files(text: str, kind: Kind, progress: Progress = silent, say: Say = say_on_stderr) -> Path:
    """Return the path of a model or adapter; one of the hub is downloaded first. Raises ModelRefused."""
    try:
        reference = parse_hub_reference(text)
    except ValueError as form:
        raise ModelRefused(f"{text}: a reference to the hub must be {form}") from None
    return Path(text) if reference is None else fetch(reference, kind, progress, say)


def allowed_roots(directory: Path) -> tuple[Path, ...]:
    """Return the folders that may hold the directory's files. In huggingface_hub's cache, a snapshot's files are links
    into the folder `blobs` of its repository, or into the one that repositories share."""
    root = directory.resolve()
    repository = root.parent.parent
    blobs = (repository / "blobs", repository.parent / "blobs") if root.parent.name == "snapshots" else ()
    return (root, *blobs)


def model_name(path: Path) -> str:
    """Return the name of a model's file or directory; ORG/NAME@COMMIT for a snapshot in huggingface_hub's cache."""
    for folder in (path.absolute(), path.resolve()):
        if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
            repo = folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
            return f"{repo}@{folder.name[:12]}"
    return path.name if path.suffix == ".gguf" else path.resolve().name


class _FileMissing(ModelRefused):
    """The list of files lacks one that is needed."""


class HubFile(NamedTuple):
    size: int
    digest: str  # sha256 of the content; git's sha1 for a file that the hub keeps in git itself


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """The files of one commit in the cache of huggingface_hub. It is recorded in Octet's cache, as JSON."""

    commit: str
    folder: Path
    files: Mapping[str, HubFile]

    def is_whole(self) -> bool:
        paths = {self.folder / name: file.size for name, file in self.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def path(self, reference: HubReference) -> Path:
        return self.folder / reference.file


def fetch(reference: HubReference, kind: Kind, progress: Progress = silent, say: Say = say_on_stderr) -> Path:
    """Return the files on this disk. The first call resolves the revision to a commit, downloads its files, checks them
    against the hub's digests and records the commit. Later calls use the recorded commit, without network."""
    record = _record_path(reference)
    known = _read_record(record)
    if known is None or not known.is_whole():
        known = _download(reference, kind, known, progress, say)
        _write_record(record, known)
    how = "" if reference.revision == known.commit else f"; delete {record} to take a newer commit"
    say(f"{reference} is commit {known.commit}{how}")
    return known.path(reference)


def _record_path(reference: HubReference) -> Path:
    return cache_directory() / "hub" / f"{quote(str(reference), safe='')}.json"


def _read_record(path: Path) -> HubSnapshot | None:
    """Return the recorded snapshot; None if there is none or it is damaged, so that it is resolved again."""
    try:
        record = json.loads(path.read_bytes())
        files = {str(name): HubFile(int(size), str(digest)) for name, (size, digest) in record["files"].items()}
        return HubSnapshot(str(record["commit"]), Path(record["folder"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_record(path: Path, snapshot: HubSnapshot) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"commit": snapshot.commit, "folder": str(snapshot.folder), "files": dict(snapshot.files)}
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(record, indent=2))
    scratch.replace(path)


def _download(
    reference: HubReference, kind: Kind, known: HubSnapshot | None, progress: Progress, say: Say
) -> HubSnapshot:
    with _explain(reference):
        revision = known.commit if known is not None else reference.revision
        commit, listed, unreachable = _resolve(reference, revision)
        if commit != reference.revision:
            pinned = HubReference(reference.repo, reference.file, commit)
            say(f"{reference} is resolved to the commit {commit}; to pin it, write {pinned}")
        try:
            chosen = _choose_files(reference, kind, listed)
            folder = _download_files(reference, commit, {name: listed[name] for name in chosen}, progress)
            if INDEX in chosen:
                chosen = [*chosen, *_shards(reference, folder / INDEX, listed)]
                _download_files(reference, commit, {name: listed[name] for name in chosen}, progress)
        except _FileMissing:
            if unreachable is None:
                raise
            raise unreachable from None  # the cache lists only the files that it holds
        _check_digests(reference, folder, {name: listed[name] for name in chosen}, progress)
    return HubSnapshot(commit, folder, {name: listed[name] for name in chosen})


def _resolve(reference: HubReference, revision: str) -> tuple[str, dict[str, HubFile], Exception | None]:
    """Return the revision's commit and its files from the hub. Without network, return what huggingface_hub's cache
    holds, and why the hub could not be asked."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        info = HfApi().model_info(reference.repo, revision=revision or None, files_metadata=True)
        listed = {each.rfilename: each for each in info.siblings or ()}
        digests = {name: each.lfs.sha256 if each.lfs else each.blob_id or "" for name, each in listed.items()}
        return str(info.sha), {name: HubFile(each.size or 0, digests[name]) for name, each in listed.items()}, None
    except HfHubHTTPError:
        raise
    except _unreachable() as error:
        try:
            folder = Path(snapshot_download(reference.repo, revision=revision or None, local_files_only=True))
        except LocalEntryNotFoundError:
            raise error from None
        unreachable = error
    # The cache names the content of a file by the digest that the hub gave.
    found = (path for path in folder.rglob("*") if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): HubFile(path.stat().st_size, path.readlink().name)
        for path in found
        if path.is_symlink()
    }
    return folder.name, files, unreachable


def _choose_files(reference: HubReference, kind: Kind, names: Collection[str]) -> list[str]:
    """Return the files to download, all of formats that hold no code. Shards that an index lists are found later."""
    if reference.file:
        if kind == "adapter" or reference.file not in names:
            known = [name for name in names if name.endswith(".gguf")]
            raise _FileMissing(f"{reference}: there is no such {kind}{_offer(reference, known)}")
        return [reference.file]
    if kind == "adapter":
        needed, optional = list(ADAPTER_FILES), []
    else:
        needed, optional = [CONFIG, "tokenizer.json"], list(VOCABULARY_FILES)
        weights = [name for name in names if "/" not in name and name.endswith(".safetensors")]
        needed += [SINGLE] if SINGLE in weights else [INDEX] if INDEX in names else sorted(weights) or [SINGLE]
    missing = [name for name in needed if name not in names]
    if missing:
        pickles = [name for name in names if name.endswith(PICKLES)]
        instead = f"; {pickles[0]} is a pickle, which is never read: convert it to safetensors" if pickles else ""
        instead = instead or _offer(reference, [name for name in names if name.endswith(".gguf")])
        raise _FileMissing(f"{reference}: it has no {missing[0]}{instead}")
    return list(dict.fromkeys([*needed, *(name for name in optional if name in names)]))


def _offer(reference: HubReference, files: Collection[str]) -> str:
    return f"; write hf:{reference.repo}/{min(files)} for its GGUF file" if files else ": check the name"


def _shards(reference: HubReference, index: Path, names: Collection[str]) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelRefused(f"{reference}: {INDEX} is not an index of safetensors files") from None
    missing = [name for name in shards if name not in names or not str(name).endswith(".safetensors")]
    if missing:
        raise _FileMissing(f"{reference}: {INDEX} names {missing[0]!r:.120}, which is not one of its weight files")
    return shards


def _download_files(reference: HubReference, commit: str, files: Mapping[str, HubFile], progress: Progress) -> Path:
    """Download the files that are not in the cache yet, one by one. Return their folder."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils.tqdm import tqdm

    what = f"downloading hf:{reference.repo}"
    cached = {name for name in files if isinstance(try_to_load_from_cache(reference.repo, name, revision=commit), str)}
    total = sum(file.size for name, file in files.items() if name not in cached)
    _check_disk(reference, Path(constants.HF_HUB_CACHE), total)
    done, path = 0, ""

    class Bar(tqdm):
        """Reports bytes to `progress` and draws nothing itself."""

        def __init__(self, *_: Any, **settings: Any) -> None:
            super().__init__(total=settings.get("total"), disable=True)  # type: ignore[no-untyped-call]
            self.num_bytes = int(settings.get("initial") or 0)

        def update(self, n: float | None = 1) -> None:
            self.num_bytes += int(n or 0)
            if total:
                progress(what, min(done + self.num_bytes, total - 1), total)  # the last byte is reported at the end

    for name, file in files.items():
        path = hf_hub_download(reference.repo, name, revision=commit, tqdm_class=Bar)
        done += 0 if name in cached else file.size
    if total:
        progress(what, total, total)
    return Path(path).parents[name.count("/")]


def _check_disk(reference: HubReference, cache: Path, needed: int) -> None:
    folder = next(each for each in (cache, *cache.parents) if each.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _disk_full(reference, cache, f"{needed:,} bytes are needed, {free:,} are free")


def _disk_full(reference: HubReference, cache: Path, why: str) -> ModelRefused:
    return ModelRefused(f"{reference}: the disk of {cache} is full ({why}): make room, or set HF_HOME to another disk")


def _check_digests(reference: HubReference, folder: Path, files: Mapping[str, HubFile], progress: Progress) -> None:
    """Compare sizes and digests with those that the hub states. Delete a damaged file and raise ModelRefused."""
    done, total = 0, sum(file.size for file in files.values())
    for name, file in files.items():
        path = folder / name
        hasher = sha256() if len(file.digest) == 64 else sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        with path.open("rb") as content:
            while chunk := content.read(CHUNK):
                hasher.update(chunk)
                done += len(chunk)
                progress(f"checking hf:{reference.repo}", min(done, total), total)
        if hasher.hexdigest() != file.digest:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise ModelRefused(
                f"{reference}: {name} has the digest {hasher.hexdigest()}, but the hub states {file.digest}: "
                "the damaged file is deleted; start again to download it"
            )


def _unreachable() -> tuple[type[Exception], ...]:
    """Return the errors of a hub that cannot be reached, or must not be (HF_HUB_OFFLINE)."""
    import httpx2
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    return httpx2.TransportError, OfflineModeIsEnabled, LocalEntryNotFoundError


@contextmanager
def _explain(reference: HubReference) -> Iterator[None]:
    """Raise errors of huggingface_hub as ModelRefused, each with what to do."""
    try:
        from huggingface_hub import constants, errors
    except ModuleNotFoundError:
        why = f"huggingface_hub is not installed; install it with: {install_hint('hf')}"
        raise ModelRefused(f"{reference}: {why}") from None
    page = f"{constants.ENDPOINT}/{reference.repo}"
    try:
        yield
        return
    except errors.GatedRepoError:
        why = f"it is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account"
    except errors.RepositoryNotFoundError:
        why = f"{page} does not exist, or is private: check the name, or set HF_TOKEN to a token that may read it"
    except errors.RevisionNotFoundError:
        why = f"there is no such revision of {page}: check what follows the @"
    except errors.HfHubHTTPError as error:
        hint = "check HF_TOKEN" if error.response.status_code in (401, 403) else "try again later"
        why = f"{constants.ENDPOINT} answered {error.response.status_code}: {hint}"
    except _unreachable() as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        why = f"{constants.ENDPOINT} cannot be reached ({reason:.200}), and {constants.HF_HUB_CACHE} does not hold "
        why += "the files: connect once to download them, or copy that folder from a machine that has them"
    except ModelRefused:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise _disk_full(reference, Path(constants.HF_HUB_CACHE), "no space is left") from None
        why = f"the download failed ({str(error).strip().partition(chr(10))[0]:.200}): start again"
    raise ModelRefused(f"{reference}: {why}") from None
