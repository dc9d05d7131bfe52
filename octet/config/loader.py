"""Loads an ensemble from a file, a text or the embedded default. Checks references, values that must agree, and files
that must exist."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from octet.config import ensemble as schema
from octet.config import yaml_tree
from octet.config.annotations import CODE_VERIFIER, HUB_PREFIX, NAME, FieldFlag, RefersTo, Shorthand, verifier_problem
from octet.config.card_shares import share_problems, split_cards
from octet.config.ensemble import Ensemble, SpecialistConfig, TaskConfig
from octet.config.fields import SchemaField, file_keys, get_fields, shared_fields
from octet.config.values import InvalidConfigValue, KeyIndex, KeyPath, ValueReader, check_count, check_name
from octet.config.yaml_tree import YamlEntry, YamlList, YamlNode, YamlScalar, YamlTable, describe_node, quote
from octet.telemetry.trace_export import otlp_endpoint_error

_NO_MERGING = "YAML merging is not supported; put defaults for every specialist at the top"
_NO_WINDOW = "has no effect while draft_window is 0: set draft_window too, for example to 16"
_TWO_SIZES = "must be left out beside memory_fraction: both size the KV pool"
_IN_ORDER: Mapping[type, tuple[tuple[str, str, int], ...]] = {
    schema.DispatchConfig: (
        ("cool_down", "max_cool_down", 1),
        ("heartbeat_seconds", "stale_seconds", 1),
        ("heartbeat_seconds", "hang_seconds", 2),
    ),
    schema.EscalationConfig: (("calm", "refused", 1),),
    schema.SloConfig: (("window", "long_window", 1),),
}
"""For each pair of keys: the first value times the factor must be at most the second value."""


ModelProblems = Callable[[Ensemble], Iterable[tuple[KeyPath, str]]]
"""Opens the models and adapters of an ensemble. Yields, for each problem, the key path and what is wrong."""
_CONFIG, _ADAPTER_FILES = "config.json", ("adapter_config.json", "adapter_model.safetensors")
_GGUF_MAGIC = b"GGUF"


def read_ensemble(path: Path, *, files: bool = False, models: ModelProblems | None = None) -> Ensemble:
    """Read and check a file. With `files`, models and adapters must exist on this machine; with `models`, it also opens
    them. Raises ConfigInvalid."""
    return parse_content(read_content(path), path, files=files, models=models)


def parse_ensemble(text: str, source: Path | None) -> Ensemble:
    """Parse and check a text. Its paths are relative to the folder of `source`. Raises ConfigInvalid."""
    return parse_content(text.encode(errors="surrogatepass"), source)


def read_content(path: Path) -> bytes:
    """Return the file's bytes. Raises ConfigInvalid if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(yaml_tree.MAX_BYTES + 1)  # with one byte more, the parser refuses a file as too large
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise yaml_tree.ConfigInvalid([yaml_tree.Problem(None, f"cannot be read: {reason or error}")], path) from error


def parse_content(
    content: bytes, source: Path | None, *, files: bool = False, models: ModelProblems | None = None
) -> Ensemble:
    """Parse and check the content. Raises ConfigInvalid with all problems."""
    problems, ensemble = yaml_tree.Problems(), None
    index = KeyIndex(problems)
    root = yaml_tree.compose_yaml(content, problems)
    if isinstance(root, YamlTable):
        ensemble = _ensemble(root, index, Path() if source is None else source.absolute().parent)
    elif root is not None:
        problems.add(root.line, f"the file must be a mapping with a key `specialists`, got {describe_node(root)}")
    if files and ensemble is not None and not problems:
        _check_files(ensemble, index, models)
    problems.raise_if_any(source)
    if ensemble is None:
        raise RuntimeError("a valid configuration gave no ensemble")
    return replace(ensemble, source=None if source is None else source.absolute())


def _ensemble(root: YamlTable, index: KeyIndex, folder: Path) -> Ensemble | None:
    """Read the ensemble. A specialist's keys may also be at the top of the file, as defaults for all specialists."""
    shared = tuple(entry for entry in root.entries if entry.key in shared_fields())
    own = tuple(entry for entry in root.entries if entry.key not in shared_fields())
    values = ValueReader(index, folder)
    no_presets = TableReader(index, values, lambda _kind, _name: {})
    defaults = no_presets.keys(Ensemble, YamlTable(shared, root.line), ()) or {}
    usual = {task.name: task for task in schema.DEFAULT_TASKS}

    def presets(kind: type, name: str) -> Mapping[str, Any]:
        if kind is SpecialistConfig:
            return defaults
        task = usual.get(name) if kind is TaskConfig else None
        return {} if task is None else {key: getattr(task, key) for key in get_fields(TaskConfig)}

    tables = TableReader(index, values, presets)
    ensemble: Ensemble | None = tables.read(Ensemble, YamlTable(own, root.line), ())
    _check_consistency(tables.built, index)
    if ensemble is None:
        return None
    # A specialist with addresses has no process here.
    specialists = tuple(replace(one, replicas=0) if one.addresses else one for one in ensemble.specialists)
    specialists = _split_cards(specialists, index)
    # The labels of a task take the place of the verifier that it has by default.
    tasks = tuple(replace(task, verify=None) if task.labels else task for task in ensemble.tasks)
    return replace(ensemble, specialists=specialists, tasks=schema.with_default_tasks(tasks))


class TableReader:
    def __init__(self, index: KeyIndex, values: ValueReader, presets: Callable[[type, str], Mapping[str, Any]]) -> None:
        """`presets` takes a dataclass and an entry's name, and returns values to use instead of the defaults."""
        self._index = index
        self._values = values
        self._presets = presets
        self.built: list[tuple[KeyPath, Any]] = []  # every instance with its key path, inner instances first

    def read(self, kind: type, node: YamlNode, place: KeyPath, name: str | None = None) -> Any | None:
        """Return an instance of `kind`, with defaults for invalid values; None if the node is not a mapping, or if a
        required key is missing or invalid. `name` is the mapping's own key, in a section whose keys are names."""
        found = self.keys(kind, node, place, name)
        if found is None:
            return None
        own = {} if name is None else {"name": name}
        values = {**self._presets(kind, name or ""), **own, **found}
        missing = [key for key, field in get_fields(kind).items() if field.required and key not in values]
        for key in missing:
            if self._index.is_valid(*place, key):
                self._index.add_problem((*place, key), "is missing")
        if missing:
            return None
        built = kind(**values)
        self.built.append((place, built))
        return built

    def keys(self, kind: type, node: YamlNode, place: KeyPath, name: str | None = None) -> dict[str, Any] | None:
        """Return the values of all valid keys; None if the node is not a mapping."""
        if isinstance(node, YamlScalar) and node.is_null:
            return {}
        if not isinstance(node, YamlTable):
            self._index.add_problem(place, f"must be a mapping of keys to values, got {describe_node(node)}", node.line)
            return None
        known = {key: field for key, field in file_keys(kind).items() if not (name is not None and key == "name")}
        found: dict[str, Any] = {}
        for entry in node.entries:
            here = (*place, entry.key)
            self._index.set_line(here, entry.line)
            if entry.key in known:
                self._field(known[entry.key], entry, here, found)
            elif entry.key == "<<":
                self._index.add_problem(here, f"is not a known key: {_NO_MERGING}")
            else:
                self._index.add_unknown(here, "is not a known key", entry.key, list(known))
        return found

    def _field(self, field: SchemaField, entry: YamlEntry, place: KeyPath, found: dict[str, Any]) -> None:
        try:
            value = self._value(field, entry.value, place)
        except InvalidConfigValue as wrong:
            empty = isinstance(entry.value, YamlScalar) and entry.value.is_null
            self._index.add_problem(place, str(wrong), entry.line if empty else entry.value.line)
        else:
            if value is not None or field.optional:
                found[field.name] = value

    def _value(self, field: SchemaField, node: YamlNode, place: KeyPath) -> Any:
        if field.item is not None:
            return self._named(field, node, place) if field.has(FieldFlag.BY_NAME) else self._listed(field, node, place)
        if field.is_table:
            if field.optional and isinstance(node, YamlScalar) and node.is_null:
                return None
            return self.read(field.kind, _expand(field, node), place)
        return self._values.read(field, node, place)

    def _named(self, field: SchemaField, node: YamlNode, place: KeyPath) -> tuple[Any, ...]:
        if isinstance(node, YamlScalar) and node.is_null:
            node = YamlTable((), node.line)
        if not isinstance(node, YamlTable):
            raise InvalidConfigValue("a mapping of names, each with its own keys below it", node)
        check_count(field, len(node.entries))
        read = [self._entry(field, entry, (*place, entry.key)) for entry in node.entries]
        return tuple(item for item in read if item is not None)

    def _entry(self, field: SchemaField, entry: YamlEntry, place: KeyPath) -> Any | None:
        self._index.set_line(place, entry.line)
        with self._index.report_invalid(place):
            check_name(entry.key, NAME, entry.line)
        return self.read(field.item or object, _expand(field, entry.value), place, name=entry.key)

    def _listed(self, field: SchemaField, node: YamlNode, place: KeyPath) -> tuple[Any, ...]:
        if isinstance(node, YamlScalar) and node.is_null:
            return ()
        if not isinstance(node, YamlList):
            raise InvalidConfigValue("a list of mappings that each start with `- `", node)
        check_count(field, len(node.items))
        read = []
        for index, item in enumerate(node.items):
            self._index.set_line((*place, index), item.line)
            read.append(self.read(field.item or object, item, (*place, index)))
        return tuple(item for item in read if item is not None)


def _expand(field: SchemaField, node: YamlNode) -> YamlNode:
    """Return the mapping that a shorthand stands for; other nodes as they are. Raises InvalidConfigValue."""
    short = field.note(Shorthand)
    if short is None or not isinstance(node, YamlScalar) or node.is_null:
        return node
    if get_fields(field.item or field.kind)[short.field].kind is bool and node.text not in ("true", "false"):
        raise InvalidConfigValue("true, false or a mapping of keys to values", node)
    return YamlTable((YamlEntry(short.field, node.line, node),), node.line)


def default_text() -> str:
    return (files("octet.config") / "default.yaml").read_text(encoding="utf-8")


@cache
def default_ensemble() -> Ensemble:
    return parse_ensemble(default_text(), source=None)


def _check_consistency(built: Iterable[tuple[KeyPath, Any]], index: KeyIndex) -> None:
    """Compare the values with each other and add problems to the index; invalid keys are skipped."""
    known = {
        "specialists": index.names("specialists"),
        "tasks": [task.name for task in schema.DEFAULT_TASKS] + index.names("tasks"),
    }
    rules: dict[str, int] = {}
    for place, item in built:
        _check_references(item, place, known, index)
        for less, more, factor in _IN_ORDER.get(type(item), ()):
            _check_order(item, place, less, more, factor, index)
        if isinstance(item, SpecialistConfig):
            _check_specialist(item, place, index)
        elif isinstance(item, TaskConfig):
            _check_task(item, place, index)
        elif isinstance(item, schema.IntentConfig):
            if item.fallback is not None and item.fallback == item.specialist:
                index.add_problem((*place, "fallback"), "must differ from `specialist`, which it stands in for")
        elif isinstance(item, schema.RuleConfig):
            _check_rule(item, place, rules, index)
        elif isinstance(item, schema.SloTargets):
            _check_targets(item, place, index)
        elif isinstance(item, schema.RouterConfig):
            if item.http_listener is not None and item.http_listener.port == item.port != 0:
                index.add_problem((*place, "http", "port"), f"must differ from the gRPC port, which is {item.port}")
        elif isinstance(item, schema.TelemetryConfig):
            trouble = otlp_endpoint_error(item.otlp) if item.otlp else ""
            if trouble and index.is_valid(*place, "otlp"):
                index.add_problem((*place, "otlp"), trouble)


def _check_references(item: Any, place: KeyPath, known: dict[str, list[str]], index: KeyIndex) -> None:
    kind: type = type(item)
    for field in get_fields(kind).values():
        refers, name = field.note(RefersTo), getattr(item, field.name)
        if refers is None or name is None or not known[refers.to] or name in known[refers.to]:
            continue
        noun = refers.to.removesuffix("s")
        here = (*place, field.name)
        index.add_unknown(here, f"names an unknown {noun} {quote(name)}", name, known[refers.to])


def _split_cards(specialists: tuple[SpecialistConfig, ...], index: KeyIndex) -> tuple[SpecialistConfig, ...]:
    """Decide whether a share of the GPU or `kv_memory` sizes each pool: what the specialist says itself precedes what
    the top of the file says."""

    def is_sized(name: str) -> bool:
        places: tuple[KeyPath, ...] = (("specialists", name), ())
        given = ((index.has_key(*place, "memory_fraction"), index.has_key(*place, "kv_memory")) for place in places)
        return next((by_size for by_share, by_size in given if by_share or by_size), False)

    sized = frozenset(one.name for one in specialists if is_sized(one.name))
    used = tuple(
        replace(one, memory_fraction=None) if one.name in sized or one.device == "cpu" else one for one in specialists
    )
    split = split_cards(used, sized)
    if index.has_key("memory_fraction") and index.has_key("kv_memory"):
        index.add_problem(("kv_memory",), _TWO_SIZES)
    for name, trouble in share_problems(split):
        index.add_problem(("specialists", name, "memory_fraction"), trouble)
    return split


def _check_memory(specialist: SpecialistConfig, place: KeyPath, index: KeyIndex) -> None:
    if specialist.device == "cpu" and specialist.dtype != "float32":
        problem = f"must be float32 on a CPU, got {specialist.dtype}: set device to cuda, or leave it out"
        index.add_problem((*place, "dtype"), problem)
    if specialist.device == "cpu" and index.has_key(*place, "memory_fraction"):
        index.add_problem((*place, "memory_fraction"), "is a share of a GPU's memory, but the device is cpu")
    if index.has_key(*place, "memory_fraction") and index.has_key(*place, "kv_memory"):
        index.add_problem((*place, "kv_memory"), _TWO_SIZES)


def _check_specialist(specialist: SpecialistConfig, place: KeyPath, index: KeyIndex) -> None:
    if specialist.name == schema.REJECT:
        problem = f"must have another name: {schema.REJECT!r} is the classifier's label for no specialist"
        index.add_problem(place, problem)
    if specialist.fallback == specialist.name:
        index.add_problem((*place, "fallback"), "must be another specialist, or left out")
    if specialist.addresses and index.has_key(*place, "replicas"):
        problem = "must be left out if addresses are given: those replicas are started elsewhere"
        index.add_problem((*place, "replicas"), problem)
    if specialist.cost_model is not None and specialist.engine != "sim" and index.has_key(*place, "cost_model"):
        index.add_problem((*place, "cost_model"), f"is only for the sim engine, but the engine is {specialist.engine}")
    if specialist.embeddings and specialist.engine != "native":
        problem = f"must be false: the {specialist.engine} engine has no hidden states"
        index.add_problem((*place, "embeddings"), problem)
    if index.is_valid(*place, "verify") and (trouble := verifier_problem(specialist.verify)):
        index.add_problem((*place, "verify"), f"is invalid: {trouble}")
    context, max_tokens = specialist.context, specialist.max_tokens
    if context is not None and max_tokens is not None and max_tokens >= context:
        key = "max_tokens" if index.has_key(*place, "max_tokens") else "context"
        rule = f"max_tokens ({max_tokens}) must be less than context ({context})"
        index.add_problem((*place, key), f"leaves no room for a prompt: {rule}")
    for key in ("draft_lane", "draft_model"):
        if getattr(specialist, key) and not specialist.draft_window and index.has_key(*place, key):
            index.add_problem((*place, key), _NO_WINDOW)
    if specialist.draft_model is not None and specialist.engine != "native" and index.has_key(*place, "draft_model"):
        index.add_problem((*place, "draft_model"), f"must be left out: the {specialist.engine} engine has no weights")
    _check_memory(specialist, place, index)
    _check_adapters(specialist, place, index)


def _check_adapters(specialist: SpecialistConfig, place: KeyPath, index: KeyIndex) -> None:
    if specialist.addresses or not index.is_valid(*place, "adapters"):
        return
    known = list(specialist.adapters) or ["none"]
    for key, names in (("use_adapters", specialist.use_adapters), ("adapter_digests", specialist.adapter_digests)):
        for name in names:
            if name not in specialist.adapters:
                index.add_unknown((*place, key), f"names {quote(name)}, which is not one of its adapters", name, known)


def _check_task(task: TaskConfig, place: KeyPath, index: KeyIndex) -> None:
    trouble = "" if task.verify in (None, CODE_VERIFIER) else verifier_problem(str(task.verify))
    if trouble and index.is_valid(*place, "verify"):
        index.add_problem((*place, "verify"), f"is invalid: {trouble}; or {CODE_VERIFIER}")
    if index.has_key(*place, "verify") and index.has_key(*place, "labels"):
        index.add_problem((*place, "verify"), "must be left out if labels are given: they decide whether it passes")


def _check_rule(rule: schema.RuleConfig, place: KeyPath, seen: dict[str, int], index: KeyIndex) -> None:
    detects, contains = index.has_key(*place, "detect"), index.has_key(*place, "contains")
    at_least, name = (*place, "at_least"), (*place, "name")
    if detects == contains:
        which = "both" if detects else "neither"
        index.add_problem(place, f"must have exactly one of `detect` and `contains`; it has {which}")
    elif detects and index.has_key(*at_least):
        index.add_problem(at_least, "must be left out: it counts strings of `contains`, which this rule does not have")
    elif contains and index.is_valid(*place, "contains") and rule.at_least > len(rule.contains):
        index.add_problem(at_least, f"must be at most {len(rule.contains)}, the number of strings in `contains`")
    if rule.name in seen:
        index.add_problem(name, f"{quote(rule.name)} is already the name of the rule on line {seen[rule.name]}")
    seen.setdefault(rule.name, index.find_line(name))


def _check_order(item: Any, place: KeyPath, less: str, more: str, factor: int, index: KeyIndex) -> None:
    low, high = getattr(item, less), getattr(item, more)
    if factor * low > high and index.is_valid(*place, less) and index.is_valid(*place, more):
        key = less if index.has_key(*place, less) else more
        unit = "" if isinstance(item, schema.EscalationConfig) else " s"
        shown = f"twice {less}" if factor == 2 else less
        problem = f"is inconsistent: {shown} ({low:g}{unit}) must be at most {more} ({high:g}{unit})"
        index.add_problem((*place, key), problem)


def _check_targets(targets: schema.SloTargets, place: KeyPath, index: KeyIndex) -> None:
    """Add a problem if a higher quantile has a shorter target."""
    for measure in ("ttft", "itl"):
        names = [f"{measure}_p{percent}" for percent in (50, 95, 99)]
        known = [(name, getattr(targets, name)) for name in names if index.is_valid(*place, name)]
        set_targets = [(name, target) for name, target in known if target is not None]
        for (less, low), (more, high) in pairwise(set_targets):
            if low > high:
                problem = f"is inconsistent: {less} ({low:g} s) must be at most {more} ({high:g} s)"
                index.add_problem((*place, more), problem)


def _check_files(ensemble: Ensemble, index: KeyIndex, models: ModelProblems | None) -> None:
    found = [(place, problem) for place, path, check in _needed_files(ensemble) if (problem := check(path))]
    if models is not None:
        opened = [(place, f"cannot be served: {problem}") for place, problem in models(ensemble)]
        better_said = {place for place, _ in opened}
        found = [*opened, *((place, problem) for place, problem in found if place not in better_said)]
    names: dict[tuple[KeyPath, str], list[str]] = {}
    for place, problem in found:
        top = place[-1:]  # the specialist may inherit the key from the top of the file
        is_inherited = not index.has_key(*place) and index.has_key(*top)
        names.setdefault((top if is_inherited else place, problem), []).append(str(place[1]))
    for (place, problem), specialists in names.items():
        index.add_problem(place, problem + (f" (for {', '.join(specialists)})" if len(place) == 1 else ""))


def _missing_problem(path: Path) -> str:
    return "" if path.exists() else f"does not exist: {path}"


def _model_problem(path: Path) -> str:
    """Return what can be seen without opening the model. `octet check --models` sees the rest."""
    if path.is_dir():
        if not (path / _CONFIG).exists():
            return f"has no {_CONFIG}, so it is not a Hugging Face directory: {path}"
        return "" if any(path.glob("*.safetensors")) else f"has no *.safetensors with the model's weights: {path}"
    if not path.is_file():
        return _missing_problem(path) or f"must be a Hugging Face directory or a GGUF file: {path}"
    try:
        with path.open("rb") as file:
            return "" if file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC else f"is not a GGUF file: {path}"
    except OSError as error:
        return f"cannot be read: {error.strerror}: {path}"


def _adapter_problem(path: Path) -> str:
    if not path.is_dir():
        return _missing_problem(path) or f"must be a folder: {path}"
    missing = [name for name in _ADAPTER_FILES if not (path / name).exists()]
    return f"has no {missing[0]}, so it is not a PEFT adapter: {path}" if missing else ""


def _needed_files(ensemble: Ensemble) -> Iterator[tuple[KeyPath, Path, Callable[[Path], str]]]:
    """Yield the files that must exist: key path, file path, and a function that returns its problem or ""."""
    for specialist in ensemble.specialists:
        place = ("specialists", specialist.name)
        if specialist.addresses:
            continue
        for key, model in (("model", specialist.model), ("draft_model", specialist.draft_model)):
            is_file = model not in (None, schema.DEMO_MODEL) and not str(model).startswith(HUB_PREFIX)
            if specialist.engine == "native" and is_file:
                yield (*place, key), Path(str(model)), _model_problem
        if specialist.engine == "sim" and specialist.cost_model is not None:
            yield (*place, "cost_model"), Path(specialist.cost_model), _missing_problem
        for name, folder in specialist.adapters.items():
            if not folder.startswith(HUB_PREFIX):
                yield (*place, "adapters", name), Path(folder), _adapter_problem
    if ensemble.classifier.path not in (None, schema.BUILT_IN_CLASSIFIER):
        yield ("classifier", "path"), Path(str(ensemble.classifier.path)), _missing_problem
