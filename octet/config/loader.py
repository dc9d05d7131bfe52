"""Load an ensemble from a file, from text, or the embedded default."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from octet.config import yaml_tree
from octet.config.ensemble import DEFAULT_TASKS, Ensemble, SpecialistConfig, TaskConfig, with_default_tasks
from octet.config.fields import fields_of, shared_fields
from octet.config.tables import TableReader
from octet.config.validation import check_consistency, check_files
from octet.config.values import KeyIndex, ValueReader
from octet.config.yaml_tree import ConfigInvalid, Problem, Problems, YamlTable, describe_node


def read_ensemble(path: Path, *, files: bool = False) -> Ensemble:
    """Read and check a file. With `files`, models and adapters must exist on this machine. Raises ConfigInvalid."""
    return parse_content(read_content(path), path, files=files)


def parse_ensemble(text: str, source: Path | None) -> Ensemble:
    """`source` is the file's path; paths are relative to its folder. Raises ConfigInvalid."""
    return parse_content(text.encode(errors="surrogatepass"), source)


def read_content(path: Path) -> bytes:
    """Read at most one byte more than the parser accepts. Raises ConfigInvalid."""
    try:
        with path.open("rb") as file:
            return file.read(yaml_tree.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigInvalid([Problem(None, f"cannot be read: {reason or error}")], path) from error


def parse_content(content: bytes, source: Path | None, *, files: bool = False) -> Ensemble:
    """Raises ConfigInvalid with all problems of the content."""
    problems, ensemble = Problems(), None
    index = KeyIndex(problems)
    root = yaml_tree.compose_yaml(content, problems)
    if isinstance(root, YamlTable):
        ensemble = _ensemble(root, index, Path() if source is None else source.absolute().parent)
    elif root is not None:
        problems.add(root.line, f"the file must be a mapping with a key `specialists`, got {describe_node(root)}")
    if files and ensemble is not None and not problems:
        check_files(ensemble, index)
    problems.raise_if_any(source)
    if ensemble is None:
        raise RuntimeError("a valid configuration gave no ensemble")
    return replace(ensemble, source=None if source is None else source.absolute())


def _ensemble(root: YamlTable, index: KeyIndex, folder: Path) -> Ensemble | None:
    """Read the file, beginning with the defaults for every specialist, which are at its top."""
    shared = tuple(entry for entry in root.entries if entry.key in shared_fields())
    own = tuple(entry for entry in root.entries if entry.key not in shared_fields())
    values = ValueReader(index, folder)
    no_presets = TableReader(index, values, lambda _kind, _name: {})
    defaults = no_presets.keys(Ensemble, YamlTable(shared, root.line), ()) or {}
    usual = {task.name: task for task in DEFAULT_TASKS}

    def presets(kind: type, name: str) -> Mapping[str, Any]:
        if kind is SpecialistConfig:
            return defaults
        task = usual.get(name) if kind is TaskConfig else None
        return {} if task is None else {key: getattr(task, key) for key in fields_of(TaskConfig)}

    tables = TableReader(index, values, presets)
    ensemble: Ensemble | None = tables.read(Ensemble, YamlTable(own, root.line), ())
    check_consistency(tables.built, index)
    if ensemble is None:
        return None
    # A specialist with addresses has no process here.
    specialists = tuple(replace(one, replicas=0) if one.addresses else one for one in ensemble.specialists)
    return replace(ensemble, specialists=specialists, tasks=with_default_tasks(ensemble.tasks))


def default_text() -> str:
    return (files("octet.config") / "default.yaml").read_text(encoding="utf-8")


@cache
def default_ensemble() -> Ensemble:
    return parse_ensemble(default_text(), source=None)
