"""A configuration file into an `Ensemble`, or everything that is wrong with it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from octet.config.agree import check_agreement
from octet.config.compose import MOST_BYTES, compose, decode
from octet.config.ensemble import Ensemble, SpecialistConfig, TaskConfig
from octet.config.fields import fields_of, shared_fields
from octet.config.files import check_files
from octet.config.problem import ConfigInvalid, Problem, Problems
from octet.config.sheet import Sheet
from octet.config.tables import Tables
from octet.config.tasks import TASKS, with_usual_tasks
from octet.config.tree import Node, Table, shown
from octet.config.values import Values

__all__ = ["ConfigInvalid", "Problem", "parse_content", "parse_ensemble", "read_content", "read_ensemble"]


def read_ensemble(path: Path, *, files: bool = False) -> Ensemble:
    """With `files`, the models and adapters it is to start here must exist, too. Raises ConfigInvalid."""
    return parse_content(read_content(path), path, files=files)


def parse_ensemble(text: str, source: Path | None) -> Ensemble:
    """`source` names the file, and relative paths start at its folder; without one they stay relative.

    Raises ConfigInvalid.
    """
    return parse_content(text.encode(errors="surrogatepass"), source)


def read_content(path: Path) -> bytes:
    """No more of it than is ever parsed. Raises ConfigInvalid."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigInvalid([Problem(None, f"cannot be read: {reason or error}")], path) from error


def parse_content(content: bytes, source: Path | None, *, files: bool = False) -> Ensemble:
    """Raises ConfigInvalid."""
    problems = Problems()
    ensemble = _parse(content, source, problems, files)
    problems.raise_if_any(source)
    if ensemble is None:
        raise RuntimeError("a configuration without problems gave no ensemble")
    return ensemble


def _parse(content: bytes, source: Path | None, problems: Problems, files: bool) -> Ensemble | None:
    text = decode(content, problems)
    root = None if text is None else compose(text, problems)
    if root is None:
        return None
    if not isinstance(root, Table):
        problems.add(root.line, f"the file must be a table with a key `specialists`, got {shown(root)}")
        return None
    sheet = Sheet(problems)
    ensemble = _ensemble(root, sheet, Path() if source is None else source.absolute().parent)
    if ensemble is None:
        return None
    if files and not problems:
        check_files(ensemble, sheet)
    return replace(ensemble, source=None if source is None else source.absolute())


def _ensemble(root: Table, sheet: Sheet, folder: Path) -> Ensemble | None:
    shared, own = _split(root)
    values = Values(sheet, folder)
    defaults = Tables(sheet, values, _no_presets).keys(Ensemble, shared, ()) or {}
    usual = {task.name: task for task in TASKS}

    def presets(kind: type, name: str) -> Mapping[str, Any]:
        if kind is SpecialistConfig:
            return defaults
        task = usual.get(name) if kind is TaskConfig else None
        return {} if task is None else {key: getattr(task, key) for key in fields_of(TaskConfig)}

    tables = Tables(sheet, values, presets)
    ensemble = tables.read(Ensemble, own, ())
    check_agreement(tables.built, sheet)
    return None if ensemble is None else _completed(ensemble)


def _split(root: Table) -> tuple[Node, Node]:
    """Defaults for every specialist, which must be read first; the rest."""
    shared = tuple(entry for entry in root.entries if entry.key in shared_fields())
    own = tuple(entry for entry in root.entries if entry.key not in shared_fields())
    return Table(shared, root.line), Table(own, root.line)


def _no_presets(_kind: type, _name: str) -> Mapping[str, Any]:
    return {}


def _completed(ensemble: Ensemble) -> Ensemble:
    """With the usual tasks; a specialist that runs elsewhere has no process here."""
    specialists = tuple(replace(one, replicas=0) if one.addresses else one for one in ensemble.specialists)
    return replace(ensemble, specialists=specialists, tasks=with_usual_tasks(ensemble.tasks))
