"""Random ensembles, drawn from the type annotations of their fields, and the same ensembles as YAML."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

import yaml
from hypothesis import strategies as st

from octet.config.annotations import (
    ADDRESS,
    DETECTORS,
    DIGEST,
    HOST,
    NAME,
    ORIGIN,
    FieldFlag,
    FilePath,
    RefersTo,
    TextLimits,
)
from octet.config.ensemble import (
    DEFAULT_TASKS,
    REJECT,
    ClassifierConfig,
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    IntentConfig,
    LanesConfig,
    RouterConfig,
    RuleConfig,
    ShadowConfig,
    SloConfig,
    SloTargets,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
    TelemetryConfig,
    with_default_tasks,
)
from octet.config.fields import SchemaField, get_fields
from octet.limits import Range

_ConfigT = TypeVar("_ConfigT")
FOLDER = Path("/etc/octet")
SOURCE = FOLDER / "ensemble.yaml"

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True).filter(lambda name: name != REJECT)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
digests = st.sampled_from(["0" * 64, "0123456789abcdef" * 4])
paths = st.sampled_from(["/models/a", "/models/b.gguf", "/näme/with space"])
hosts = st.sampled_from(["127.0.0.1", "::1", "gpu-7.example"])
addresses = st.sampled_from(["a:1", "10.0.0.7:50151", "[::1]:9", "dns:///lane.local:50151", "unix:/run/octet/a.sock"])


def values(field: SchemaField) -> st.SearchStrategy[Any]:
    """Draw values of a field without regard to other fields."""
    one = _one(field)
    return st.none() | one if field.optional else one


def _one(field: SchemaField) -> st.SearchStrategy[Any]:
    if field.is_table:
        return configs(field.kind)
    if field.kind is bool:
        return st.booleans()
    if field.kind in (int, float):
        return _numbers(field)
    if field.kind is str:
        return _texts(field)
    if get_origin(field.kind) is tuple:
        return st.lists(_texts(field), max_size=3, unique=True).map(tuple)
    if get_origin(field.kind) is Mapping:
        values = digests if field.note(TextLimits) is DIGEST else paths
        return st.dictionaries(names, values, max_size=2).map(MappingProxyType)
    return st.sampled_from(get_args(field.kind))


def _numbers(field: SchemaField) -> st.SearchStrategy[float]:
    limits = field.note(Range)
    assert limits is not None, f"{field.name} has no range, but every number in a file must have one"
    if field.kind is int:
        return st.integers(int(limits.least), int(limits.most))
    drawn = st.floats(limits.least, limits.most, exclude_min=limits.open, allow_subnormal=False)
    return drawn | st.just(0.0) if limits.or_zero else drawn


def _texts(field: SchemaField) -> st.SearchStrategy[str]:
    path, text = field.note(FilePath), field.note(TextLimits)
    if path is not None:
        return paths if path.word is None else paths | st.just(path.word)
    if text is NAME:
        return names
    if text is HOST:
        return hosts
    if text is ORIGIN:
        return st.sampled_from(["https://shop.example", "http://localhost:5173", "https://[::1]:8443"])
    if field.name == "verify":
        return st.sampled_from(["cpp", "json:schema.json", "none", "my.module:judge"])
    return addresses if text is ADDRESS else texts


def configs(kind: type[_ConfigT], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[_ConfigT]:
    fields = get_fields(kind)  # type: ignore[arg-type]
    drawn = {name: values(field) for name, field in fields.items() if not field.note(RefersTo)}
    return st.builds(kind, **(drawn | given))


@st.composite
def targets(draw: st.DrawFn) -> SloTargets:
    drawn = draw(configs(SloTargets))
    rising: dict[str, float] = {}
    for measure in ("ttft", "itl"):
        names = [f"{measure}_p{percent}" for percent in (50, 95, 99)]
        given = [name for name in names if getattr(drawn, name) is not None]
        rising |= dict(zip(given, sorted(getattr(drawn, name) for name in given), strict=True))
    return replace(drawn, **rising)


@st.composite
def windows(draw: st.DrawFn) -> SloConfig:
    drawn = draw(configs(SloConfig))
    return replace(drawn, window=min(drawn.window, drawn.long_window))


@st.composite
def specialists(draw: st.DrawFn, name: str, all_names: list[str]) -> SpecialistConfig:
    others = [other for other in all_names if other != name]
    fallback = st.none() | st.sampled_from(others) if others else st.none()
    device = st.sampled_from(["cpu", "cuda", "cuda:3"])
    share = st.none() | st.floats(1e-6, 1 / 64 / 3)
    fixed = {"name": st.just(name), "fallback": fallback, "device": device, "memory_fraction": share}
    drawn = draw(configs(SpecialistConfig, slo=targets(), **fixed))
    has_share = drawn.device != "cpu" and drawn.memory_fraction is not None
    most = 1 << 20 if drawn.context is None else drawn.context - 1
    known = tuple(drawn.adapters)
    return replace(
        drawn,
        max_tokens=None if drawn.max_tokens is None else min(drawn.max_tokens, most),
        adapter_digests=MappingProxyType(dict.fromkeys(known[: len(drawn.adapter_digests)], "0" * 64)),
        use_adapters=drawn.use_adapters if drawn.addresses else known[: len(drawn.use_adapters)],
        replicas=0 if drawn.addresses else drawn.replicas,
        cost_model=drawn.cost_model if drawn.engine == "sim" else None,
        embeddings=drawn.embeddings and drawn.engine == "native",
        draft_lane=drawn.draft_lane and drawn.draft_window > 0,
        draft_model=drawn.draft_model if drawn.draft_window and drawn.engine == "native" else None,
        dtype="float32" if drawn.device == "cpu" else drawn.dtype,
        kv_memory=192 << 20 if has_share else drawn.kv_memory,
        memory_fraction=drawn.memory_fraction if has_share else None,
    )


@st.composite
def rules(draw: st.DrawFn, name: str, all_names: list[str]) -> RuleConfig:
    specialist = draw(st.sampled_from(all_names))
    if draw(st.booleans()):
        return RuleConfig(name, specialist, detect=draw(st.sampled_from(list(DETECTORS))))
    pieces = tuple(draw(st.lists(texts, min_size=1, max_size=3, unique=True)))
    return RuleConfig(name, specialist, contains=pieces, at_least=draw(st.integers(1, len(pieces))))


@st.composite
def dispatches(draw: st.DrawFn) -> DispatchConfig:
    drawn = draw(configs(DispatchConfig))
    return replace(
        drawn,
        cool_down=min(drawn.cool_down, drawn.max_cool_down),
        stale_seconds=max(drawn.stale_seconds, drawn.heartbeat_seconds),
        hang_seconds=max(drawn.hang_seconds, 2 * drawn.heartbeat_seconds),
    )


@st.composite
def escalations(draw: st.DrawFn) -> EscalationConfig:
    drawn = draw(configs(EscalationConfig))
    return replace(drawn, calm=min(drawn.calm, drawn.refused))


_NamedT = TypeVar("_NamedT", IntentConfig, TaskConfig)


def named(items: Iterable[_NamedT], name: str) -> _NamedT:
    return {item.name: item for item in items}[name]


def some_names(most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(names, max_size=most, unique=True)


@st.composite
def ensembles(draw: st.DrawFn, most: int = 3) -> Ensemble:
    all_names = draw(st.lists(names, min_size=1, max_size=most, unique=True))
    own = draw(some_names(2))
    tasks = tuple(
        draw(configs(TaskConfig, name=st.just(name)).map(_one_judge))
        for name in [*own, *draw(st.sampled_from([[], ["review"]]))]
    )
    any_name = st.none() | st.sampled_from(all_names)
    task = st.none() | st.sampled_from([*own, *(usual.name for usual in DEFAULT_TASKS)])
    return Ensemble(
        specialists=tuple(draw(specialists(name, all_names)) for name in all_names),
        name=draw(names),
        intents=tuple(
            draw(configs(IntentConfig, name=st.just(name), specialist=any_name, task=task))
            for name in draw(some_names(2))
        ),
        rules=tuple(draw(rules(name, all_names)) for name in draw(some_names(2))),
        tasks=with_default_tasks(tasks),
        default=draw(any_name),
        classifier=draw(configs(ClassifierConfig)),
        dispatch=draw(dispatches()),
        correctness=draw(configs(CorrectnessConfig)),
        shadow=draw(configs(ShadowConfig)),
        lanes=draw(configs(LanesConfig)),
        escalation=draw(escalations()),
        store=draw(configs(StoreConfig)),
        slo=draw(windows()),
        telemetry=draw(
            configs(TelemetryConfig, otlp=st.sampled_from(["", "http://127.0.0.1:4317", "https://otel:4317"]))
        ),
        adapter_root=draw(st.none() | paths),
        router=draw(configs(RouterConfig).filter(_has_own_http_port)),
        source=SOURCE,
    )


def _has_own_http_port(router: RouterConfig) -> bool:
    http = router.http_listener
    return http is None or http.port != router.port or router.port == 0


def written(ensemble: Ensemble, at_the_top: str | None = None) -> str:
    """Return the ensemble as YAML with all keys. If `at_the_top` is given, that key is written at the top level instead
    of in the only specialist."""
    plain = _plain(ensemble)
    if at_the_top is not None:
        (specialist,) = plain["specialists"].values()
        plain |= {at_the_top: specialist.pop(at_the_top)} if at_the_top in specialist else {}
    return yaml.safe_dump(plain, sort_keys=False)


def _one_judge(task: TaskConfig) -> TaskConfig:
    """Labels and a verifier exclude each other."""
    return replace(task, verify=None) if task.labels else task


def _plain(table: Any) -> dict[str, Any]:
    kind: type = type(table)
    found = {name: getattr(table, name) for name in get_fields(kind) if name != "source"}
    if isinstance(table, SpecialistConfig):
        found.pop("replicas" if table.addresses else "addresses")
        found.pop("memory_fraction" if table.memory_fraction is None else "kv_memory")
    if isinstance(table, RuleConfig):
        for name in ("contains", "at_least") if table.detect else ("detect",):
            found.pop(name)
    if isinstance(table, TaskConfig):
        found.pop("verify" if table.labels else "labels")
    return {name: _value(get_fields(kind)[name], value) for name, value in found.items()}


def _value(field: SchemaField, value: Any) -> Any:
    if field.is_table:
        return None if value is None else _plain(value)
    if field.item is not None:
        items = [_plain(item) for item in value]
        return {item.pop("name"): item for item in items} if field.has(FieldFlag.BY_NAME) else items
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
