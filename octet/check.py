"""`octet check`: everything that is wrong with a configuration, or what it amounts to."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.config.problem import ConfigInvalid, Problem

_DESCRIPTION = """\
Check a configuration file without starting anything. Every problem is printed
on a line of its own, as FILE:LINE: what is wrong and what would be right.
Without a file, the embedded default is checked.

Exit status: 0 when it can be served, 2 when it cannot.
"""
_WRONG = 2


def add_check_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "check",
        description=_DESCRIPTION,
        help="check a configuration file, and see what it amounts to",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: the embedded ensemble")
    parser.add_argument("--no-files", action="store_true", help="models and adapters need not be on this machine")
    parser.add_argument("--json", action="store_true", help="problems or summary as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        ensemble = _read(arguments.file, files=not arguments.no_files)
    except ConfigInvalid as invalid:
        _show_problems(invalid, as_json=arguments.json)
        return _WRONG
    except ModuleNotFoundError as error:
        print(f"octet check: {error}; install it with: pip install 'octet[router]'", file=sys.stderr)
        return _WRONG
    summary = summarise(ensemble)
    print(json.dumps(summary, indent=2, ensure_ascii=False) if arguments.json else shown(summary))
    return 0


def _read(file: Path | None, *, files: bool) -> Ensemble:
    from octet.config.default import default_ensemble
    from octet.config.read import read_ensemble

    return default_ensemble() if file is None else read_ensemble(file, files=files)


def _show_problems(invalid: ConfigInvalid, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"valid": False, "problems": [_plain(problem) for problem in invalid.problems]}, indent=2))
    else:
        print(invalid)


def _plain(problem: Problem) -> dict[str, Any]:
    return {"line": problem.line, "message": problem.message}


def summarise(ensemble: Ensemble) -> dict[str, Any]:
    """What will run, and what that takes: the pools' memory is fixed from the start, the weights come on top."""
    from octet.config.digest import digest_of_ensemble

    return {
        "valid": True,
        "name": ensemble.name,
        "source": None if ensemble.source is None else str(ensemble.source),
        "digest": digest_of_ensemble(ensemble),
        "specialists": [_specialist(specialist) for specialist in ensemble.specialists],
        "rules": [f"{rule.name} -> {rule.specialist}" for rule in ensemble.rules],
        "intents": [f"{intent.name} -> {intent.specialist or 'by its text'}" for intent in ensemble.intents],
        "tasks": [task.name for task in ensemble.tasks],
        "classifier": ensemble.classifier.path or "from descriptions and examples",
        "default_specialist": ensemble.default_specialist,
        "listens": f"{ensemble.router.host}:{ensemble.router.port}",
        "http": None if ensemble.router.http is None else f"{ensemble.router.http.host}:{ensemble.router.http.port}",
        "processes": 1 + sum(specialist.replicas for specialist in ensemble.specialists),
        "kv_bytes": sum(specialist.replicas * specialist.kv_memory for specialist in ensemble.specialists),
        "models": sorted({one.model for one in ensemble.specialists if one.replicas and one.engine == "native"}),
    }


def _specialist(specialist: SpecialistConfig) -> dict[str, Any]:
    return {
        "name": specialist.name,
        "model": specialist.model if specialist.engine == "native" else specialist.engine,
        "replicas": specialist.replicas,
        "addresses": list(specialist.addresses),
        "block_size": specialist.block_size,
        "kv_bytes": specialist.replicas * specialist.kv_memory,
        "max_tokens": specialist.max_tokens,
        "fallback": specialist.fallback,
        "adapters": sorted(specialist.adapters),
    }


def shown(summary: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("specialist", "model", "replicas", "block", "KV memory", "max tokens", "fallback")]
    rows += [_row(specialist) for specialist in summary["specialists"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(
        [
            f"{summary['source'] or 'the embedded default'}: {summary['name']}, {_count(len(rows) - 1, 'specialist')}",
            "",
            *table,
            "",
            _line("rules", ", ".join(summary["rules"]) or "none"),
            _line("intents", ", ".join(summary["intents"]) or "none"),
            _line("tasks", ", ".join(summary["tasks"])),
            _line("classifier", summary["classifier"]),
            _line("unsure", summary["default_specialist"] or "nobody answers"),
            _line("listens on", summary["listens"]),
            _line("HTTP on", summary["http"] or "nowhere: `router.http` is not set"),
            _line("processes", f"{summary['processes']}, the router among them"),
            _line("memory", _memory(summary)),
            _line("digest", summary["digest"][:16]),
        ]
    )


def _row(specialist: dict[str, Any]) -> tuple[str, ...]:
    where = ", ".join(specialist["addresses"]) or str(specialist["replicas"])
    return (
        specialist["name"],
        specialist["model"],
        where,
        str(specialist["block_size"]),
        _megabytes(specialist["kv_bytes"]),
        str(specialist["max_tokens"]),
        specialist["fallback"] or "-",
    )


def _memory(summary: dict[str, Any]) -> str:
    pools = f"{_megabytes(summary['kv_bytes'])} of KV pools"
    return f"{pools}, and the weights of {', '.join(summary['models'])}" if summary["models"] else pools


def _line(name: str, value: str) -> str:
    return f"{name:<11} {value}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
