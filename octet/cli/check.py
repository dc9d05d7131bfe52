"""`octet check`: validate a configuration file and summarise it."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octet.cli.arguments import EXIT_INVALID, Commands, add_parser
from octet.config.card_shares import card_of, shares_by_card
from octet.config.ensemble import Ensemble, IntentConfig, SpecialistConfig
from octet.config.yaml_tree import ConfigInvalid
from octet.terminal import ONE_LINE, format_table, install_hint, pluralize

if TYPE_CHECKING:
    from octet.config.loader import ModelProblems

_DESCRIPTION = """\
Validate a configuration file without starting anything. Every problem is printed
on its own line, as FILE:LINE: the problem and what is allowed. Without a file,
the embedded default is checked. With --models, every model and adapter is opened
and checked as a replica does at its start, except for the values of the weights;
models of the Hugging Face hub are downloaded first.
A warning says that some specialists cannot be chosen by a request's text; the
configuration is valid nevertheless.

Exit status: 0 when the configuration is valid, 2 when it is not.
"""
_HEADING = ("specialist", "model", "replicas", "block", "KV memory", "max tokens", "verify", "floor", "fallback")


def add_check_command(commands: Commands) -> None:
    about = "validate a configuration file and summarise it"
    parser = add_parser(commands, "check", about, description=_DESCRIPTION)
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: the embedded ensemble")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--models", action="store_true", help="open the models and adapters, and check them")
    files.add_argument("--no-files", action="store_true", help="do not look for models and adapters on this machine")
    parser.add_argument("--json", action="store_true", help="print problems or summary as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        models = _model_problems() if arguments.models else None
        ensemble = load_ensemble(arguments.file, files=not arguments.no_files, models=models)
    except ConfigInvalid as invalid:
        problems = [{"line": problem.line, "message": problem.message} for problem in invalid.problems]
        print(json.dumps({"valid": False, "problems": problems}, indent=2) if arguments.json else invalid)
        return EXIT_INVALID
    except ModuleNotFoundError as error:
        extra = "serve" if arguments.models else "router"
        print(f"octet check: {error}; install it with: {install_hint(extra)}", file=sys.stderr)
        return EXIT_INVALID
    summary = summarize(ensemble)
    for warning in [] if arguments.json else summary["warnings"]:
        print(f"octet check: warning: {warning}", file=sys.stderr)
    print(json.dumps(summary, indent=2, ensure_ascii=False) if arguments.json else format_summary(summary))
    if arguments.models and not arguments.json:
        adapters = sum(len(each["adapters"]) for each in summary["specialists"])
        print(f"opened      {pluralize(len(summary['models']), 'model')}, {pluralize(adapters, 'adapter')}")
    return 0


def load_ensemble(file: Path | None, *, files: bool = True, models: "ModelProblems | None" = None) -> Ensemble:
    """Load the file, or the default. With `files`, check that models and adapters exist; with `models`, open them.
    Raises ConfigInvalid."""
    from octet.config.loader import default_ensemble, default_text, parse_content, read_ensemble  # needs pyyaml

    if file is not None:
        return read_ensemble(file, files=files, models=models)
    return (
        default_ensemble()
        if models is None
        else parse_content(default_text().encode(), None, files=True, models=models)
    )


def _model_problems() -> "ModelProblems":
    from specialist.models.progress import bar  # imported late: the modules below load a framework
    from specialist.server.model_check import find_model_problems

    return lambda ensemble: find_model_problems(ensemble, bar(sys.stderr))


def find_warnings(ensemble: Ensemble) -> list[str]:
    """Return what makes the routing useless, although the configuration is valid, with the remedies."""
    specialists, default = ensemble.specialists, ensemble.default_name
    if ensemble.classifier.path is not None or len(specialists) == 1:
        return []
    named = {default, *(rule.specialist for rule in ensemble.rules), *(each.specialist for each in ensemble.intents)}
    silent = [each.name for each in specialists if not (each.describe or each.examples)]
    missing = [name for name in silent if name not in named]
    if not missing:
        return []
    effect = "no request is routed there by its text"
    remedy = "add `describe` and `examples`"
    if len(silent) == len(specialists) and default is None:
        effect, remedy = (
            "requests that match no rule are refused unless they name a specialist",
            f"{remedy}, or set `default`",
        )
    return [f"{', '.join(missing)}: without a description and examples, {effect}; {remedy}"]


def summarize(ensemble: Ensemble) -> dict[str, Any]:
    """Summarise the ensemble for `--json` and for the text. `kv_bytes` does not include model weights."""
    from octet.config.fields import ensemble_digest

    router, specialists, http = ensemble.router, ensemble.specialists, ensemble.router.http_listener
    return {
        "valid": True,
        "warnings": find_warnings(ensemble),
        "name": ensemble.name,
        "source": None if ensemble.source is None else str(ensemble.source),
        "digest": ensemble_digest(ensemble),
        "specialists": [_summarize_specialist(each) for each in specialists],
        "rules": [f"{rule.name} -> {rule.specialist}" for rule in ensemble.rules],
        "intents": [_summarize_intent(intent) for intent in ensemble.intents],
        "tasks": [task.name for task in ensemble.tasks],
        "classifier": ensemble.classifier.path or "from descriptions and examples",
        "default": ensemble.default_name,
        "bare": ensemble.bare,
        "listens": f"{router.host}:{router.port}",
        "http": None if http is None else f"{http.host}:{http.port}",
        "processes": 1 + sum(each.replicas for each in specialists),
        "kv_bytes": sum(_kv_bytes(each) for each in specialists),
        "spill_bytes": sum(_spill_bytes(each) for each in specialists),
        "cards": dict(sorted(shares_by_card(specialists).items())),
        "models": sorted({each.model for each in specialists if each.replicas and each.engine == "native"}),
    }


def _summarize_intent(intent: IntentConfig) -> str:
    fallback = f", else {intent.fallback}" if intent.fallback else ""
    return f"{intent.name} -> {intent.specialist or 'by its text'}{fallback}"


def _summarize_specialist(specialist: SpecialistConfig) -> dict[str, Any]:
    names = ("name", "replicas", "block_size", "max_tokens", "verify", "floor", "fallback")
    return {
        **{name: getattr(specialist, name) for name in names},
        "model": specialist.model if specialist.engine == "native" else specialist.engine,
        "addresses": list(specialist.addresses),
        "kv_bytes": _kv_bytes(specialist),
        "spill_bytes": _spill_bytes(specialist),
        "card": card_of(specialist),
        "memory_fraction": specialist.memory_fraction,
        "adapters": sorted(specialist.adapters),
    }


def _kv_bytes(specialist: SpecialistConfig) -> int:
    return specialist.replicas * specialist.kv_memory if specialist.memory_fraction is None else 0


def _spill_bytes(specialist: SpecialistConfig) -> int:
    return specialist.replicas * specialist.spill_memory


def format_summary(summary: dict[str, Any]) -> str:
    source, specialists = summary["source"] or "the embedded default", summary["specialists"]
    weights = f" plus the weights of {', '.join(summary['models'])}" if summary["models"] else ""
    spilled = f", {_megabytes(summary['spill_bytes'])} of spilled blocks" if summary["spill_bytes"] else ""
    lines = {
        "rules": ", ".join(summary["rules"]) or "none",
        "intents": ", ".join(summary["intents"]) or "none",
        "tasks": ", ".join(summary["tasks"]),
        "classifier": summary["classifier"],
        "if unsure": summary["default"] or "no specialist answers",
        "if none fits": f"the bare model of {summary['bare']}" if summary["bare"] else "the request is refused",
        "gRPC": summary["listens"],
        "HTTP": summary["http"] or "disabled",
        "processes": f"{summary['processes']}, including the router",
        "memory": f"{_megabytes(summary['kv_bytes'])} of KV pools{spilled}{weights}",
        **({"GPU memory": _card_sums(summary)} if summary["cards"] else {}),
        "digest": summary["digest"][:16],
    }
    heading = f"{source}: {summary['name']}, {pluralize(len(specialists), 'specialist')}"
    table = format_table(_HEADING, [_specialist_row(each) for each in specialists], width=ONE_LINE)
    return "\n".join([heading, "", table, "", *(f"{name:<11} {value}" for name, value in lines.items())])


def _specialist_row(each: dict[str, Any]) -> tuple[str, ...]:
    replicas = ", ".join(each["addresses"]) or str(each["replicas"])
    memory = f"{_share(each)} of {each['card']}" if each["memory_fraction"] else _megabytes(each["kv_bytes"])
    sizes = (str(each["block_size"]), memory, str(each["max_tokens"] or "by task"))
    judged = (each["verify"], str(each["floor"]))
    return each["name"], each["model"], replicas, *sizes, *judged, each["fallback"] or "-"


def _card_sums(summary: dict[str, Any]) -> str:
    """Return the shares of each card: those of its specialists, their sum, and what is left."""
    lines = []
    for card, taken in summary["cards"].items():
        own = [each for each in summary["specialists"] if each["card"] == card]
        terms = [f"{each['name']} {each['replicas']} x {_share(each)}" for each in own]
        lines.append(f"{card}: {' + '.join(terms)}; {1 - taken:.3g} is left")
    return "\n            ".join(lines)


def _share(each: dict[str, Any]) -> str:
    """Return what a replica takes of a card."""
    share = each["memory_fraction"]
    return "weights and pool" if share is None else f"{share:.3g}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
