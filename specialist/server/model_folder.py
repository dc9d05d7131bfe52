"""Finds models and adapters in a folder, and the model of each adapter."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specialist.adapters.adapter import read_adapter, read_adapter_config
from specialist.adapters.catalog import AdapterRefused
from specialist.models.checkpoint import ModelConfig
from specialist.models.hub import ADAPTER_FILES, CONFIG, PICKLES, model_name
from specialist.models.open import inspect_model

_MAX_DEPTH = 6
_MAX_CARD_BYTES = 1 << 20
_CARD = "README.md"
_BOILERPLATE = ("fine-tuned version of", "More Information Needed")


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    path: Path
    model: Path
    note: str = ""  # what is uncertain about its model


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a folder holds. Paths are sorted."""

    models: dict[Path, ModelConfig] = field(default_factory=dict)
    adapters: list[FoundAdapter] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)  # and why


def search_folder(folder: Path) -> ModelFolder:
    """Open every model and adapter below the folder. Raises OSError if the folder cannot be read."""
    found, adapters = ModelFolder(), []
    for path in sorted(_walk(folder, 0, set(), found.skipped)):
        try:
            if (path / ADAPTER_FILES[0]).exists():
                adapters.append(path)
                continue
        except OSError as error:
            found.skipped.append((path, _explain(error)))
            continue
        inspected = inspect_model(path)
        if inspected.config is not None and not inspected.problems:
            found.models[path] = inspected.config
        else:
            found.skipped.append((path, inspected.problems[0]))
    for path in adapters:
        match = _match_adapter(path, found.models)
        if isinstance(match, FoundAdapter):
            found.adapters.append(match)
        else:
            found.skipped.append((path, match))
    return found


def _walk(folder: Path, depth: int, seen: set[Path], skipped: list[tuple[Path, str]]) -> Iterator[Path]:
    """Yield directories of models and adapters, and GGUF files. Hidden folders are skipped, links are followed once.
    Entries that cannot be read or named go to `skipped`. Raises OSError if the folder itself cannot be read."""
    real = folder.resolve()
    if real in seen or depth > _MAX_DEPTH:
        return
    seen.add(real)
    with os.scandir(folder) as scanned:
        entries = [entry for entry in scanned if not entry.name.startswith(".")]
    names = {entry.name for entry in entries}
    if ADAPTER_FILES[0] in names or (CONFIG in names and any(_is_weights(name) for name in names)):
        yield folder
        return
    for entry in entries:
        path = folder / entry.name
        try:
            is_folder = entry.is_dir()
            if not (is_folder or entry.name.endswith(".gguf")):
                continue
            if not entry.name.isprintable():
                skipped.append((path, "its name has characters that cannot be printed: rename it"))
            elif is_folder:
                yield from _walk(path, depth + 1, seen, skipped)
            else:
                yield path
        except OSError as error:
            skipped.append((path, _explain(error)))


def _explain(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json", *PICKLES))


def _match_adapter(path: Path, models: dict[Path, ModelConfig]) -> FoundAdapter | str:
    """Return the adapter with its model, or why it has none. A model that the adapter names is preferred among those
    whose tensors fit."""
    try:
        fields = read_adapter_config(path)
    except AdapterRefused as refused:
        return str(refused)
    base = str(fields.get("base_model_name_or_path") or read_card(path).get("base_model") or "")
    refusals: dict[Path, str] = {}
    for model, config in models.items():
        try:
            read_adapter(path, config)
        except AdapterRefused as refused:
            refusals[model] = str(refused)
    fitting = [model for model in models if model not in refusals]
    named = [model for model in models if _is_named(model, base)]
    chosen = [model for model in fitting if model in named] or fitting
    if not chosen:
        about = f"its base model is {base}; " if base else ""
        wrong = next((refusals[model] for model in (*named, *models)), "there is no model in the folder")
        return f"{about}it fits none of the models here: {wrong}"
    if chosen[0] not in named and base:
        return FoundAdapter(path, chosen[0], f"its base model is {base}; {chosen[0].name} has the same shapes")
    others = ", ".join(other.name for other in chosen[1:])
    return FoundAdapter(path, chosen[0], f"it also fits {others}" if others else "")


def _is_named(model: Path, base: str) -> bool:
    """Whether `base`, a path or a name on the hub, means this model. A GGUF file adds its type to the name."""
    if not base:
        return False
    wanted = Path(base).name.lower()
    name = model_name(model).rpartition("/")[2].partition("@")[0].lower()
    return name == wanted or (name.endswith(".gguf") and name.startswith(wanted)) or Path(base).absolute() == model


def read_card(path: Path) -> dict[str, Any]:
    """Return the front matter of the model card, and its first paragraph as `paragraph`; empty without a card."""
    try:
        with (path / _CARD).open("rb") as file:
            text = file.read(_MAX_CARD_BYTES).decode(errors="replace").replace("\r\n", "\n")
        matter, body = text.split("\n---", 1) if text.startswith("---\n") else ("", text)
        front = yaml.safe_load(matter) or {}
    except (OSError, yaml.YAMLError, RecursionError):
        return {}
    return {**(front if isinstance(front, dict) else {}), "paragraph": _first_paragraph(body)}


def _first_paragraph(body: str) -> str:
    """Return the prose under the first heading; empty for what a trainer writes into every card."""
    headings = 0
    for block in body.split("\n\n"):
        text = " ".join(block.split())
        headings += text.startswith("#")
        is_prose = text[:1].isalpha() and not any(
            words in text for words in ("fine-tuned version of", "More Information")
        )
        if headings > 1:
            break
        if is_prose:
            return text
    return ""
