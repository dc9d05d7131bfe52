"""`octet init`: write a configuration from a folder of models and adapters."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octet.cli.arguments import Commands, add_flag, add_option, add_parser, report_errors, started_as
from octet.config.annotations import HUB_PREFIX
from octet.config.ensemble import DEMO_MODEL, REJECT, Ensemble
from octet.terminal import pluralize, replace_unprintable

if TYPE_CHECKING:
    from specialist.server.model_folder import ModelFolder

_DESCRIPTION = """\
Write a configuration from a folder of models and adapters: Hugging Face
directories, GGUF files and PEFT adapters, each opened and checked. Every adapter
becomes a specialist on its base model, and so does every model without adapters.
Says what was found, and what was skipped and why. The file can be served as it is.

Exit status: 0 when the file is written, 2 when it is not.
"""
_DEFAULT_FILE = "octet.yaml"
_MAX_SPECIALISTS = 64
_MAX_NAME = 64
_MAX_DESCRIPTION = 400
_CARD_FIELDS = ("pipeline_tag", "tags", "datasets", "language")


def add_init_command(commands: Commands) -> None:
    parser = add_parser(commands, "init", "write a configuration from a folder of models", description=_DESCRIPTION)
    add_option(parser, "folder", "FOLDER", "default: the working directory", Path, nargs="?", default=Path())
    add_option(parser, "-o", "FILE", "default: %(default)s", Path, dest="file", default=Path(_DEFAULT_FILE))
    add_flag(parser, "--force", "overwrite the file if it exists")
    add_flag(parser, "--json", "print what was found and skipped as JSON")
    parser.set_defaults(run=lambda arguments: report_errors("init", lambda: _run(arguments)))


def _run(arguments: argparse.Namespace) -> int:
    from octet.config.loader import parse_ensemble  # these need the extra `serve`
    from specialist.server.model_folder import search_folder

    folder, file = arguments.folder, arguments.file
    if not str(file).isprintable():
        raise ValueError(f"-o must be a name of printable characters, got {str(file)!r:.80}")
    if file.exists() and not arguments.force:
        raise ValueError(f"{file} exists: give another name with -o, or --force to overwrite it")
    found = search_folder(folder.absolute())
    specialists = list(_plan_specialists(found))
    for each in specialists[_MAX_SPECIALISTS:]:
        found.skipped.append(
            (each.adapter or each.model, f"a configuration has at most {_MAX_SPECIALISTS} specialists")
        )
    del specialists[_MAX_SPECIALISTS:]
    if arguments.json:
        print(json.dumps(_summarize(found, specialists, file), indent=2))
    else:
        for line in _describe_findings(found, specialists, folder.absolute()):
            print(replace_unprintable(line))
    if not specialists:
        formats = "Hugging Face directories (config.json, *.safetensors) or *.gguf files"
        raise ValueError(
            f"{replace_unprintable(str(folder))} has nothing to serve: it needs models that Octet can open, {formats}"
        )
    text = _format_config(specialists, folder, file)
    ensemble = parse_ensemble(text, file)
    _check_paths(ensemble, specialists)
    with file.open("w" if arguments.force else "x", encoding="utf-8") as written:
        written.write(text)
    if not arguments.json:
        print("\n".join(_describe_next_steps(ensemble, file)))
    return 0


def _check_paths(ensemble: Ensemble, specialists: list["PlannedSpecialist"]) -> None:
    """Raises ValueError if the configuration means other files than those that were found."""
    for each in specialists:
        read = ensemble.specialist(each.name)
        for path, got in ((each.model, read.model), (each.adapter, read.adapters.get(each.name))):
            if got != (None if path is None else str(path)):
                raise ValueError(f"{str(path)!r} would be read as {got!r} in a configuration: rename it")


def _describe_next_steps(ensemble: Ensemble, file: Path) -> Iterator[str]:
    names = ensemble.names
    described = [each.name for each in ensemble.specialists if each.describe]
    yield f"wrote {file} with {pluralize(len(names), 'specialist')}"
    if len(names) == 1:
        yield "describe it there, then run:"
    else:
        default = f"{ensemble.default_name} (`default`)"
        rest = f"requests go to {', '.join(described)} (by model card) or {default}"
        until = rest if described else f"every request goes to {default}"
        yield f"describe them there (until then, {until}), then run:"
    for command in _next_commands(file, started_as()):
        yield f"  {command}"


def _next_commands(file: Path, program: list[str]) -> tuple[str, str]:
    """Return commands as a shell takes them."""
    name = f"./{file}" if str(file).startswith("-") else str(file)
    return shlex.join([*program, "check", "--models", name]), shlex.join([*program, "serve", name])


def _summarize(found: "ModelFolder", specialists: list["PlannedSpecialist"], file: Path) -> dict[str, Any]:
    return {
        "file": str(file) if specialists else None,
        "specialists": [
            {"name": each.name, "model": str(each.model), "adapter": str(each.adapter or "") or None, "note": each.note}
            for each in specialists
        ],
        "skipped": [{"path": str(path), "why": why} for path, why in found.skipped],
    }


@dataclass(frozen=True, slots=True)
class PlannedSpecialist:
    name: str
    model: Path
    about_model: str
    adapter: Path | None = None
    note: str = ""  # what is uncertain
    card: "dict[str, Any] | None" = None


def _plan_specialists(found: "ModelFolder") -> Iterator[PlannedSpecialist]:
    from specialist.models.hub import model_name
    from specialist.server.model_folder import read_card

    names: set[str] = {REJECT}
    about = {
        path: f"{config.architecture}, {config.num_layers} layers, context {config.context:,}"
        for path, config in found.models.items()
    }
    for adapter in found.adapters:
        name = _unique_name(model_name(adapter.path), names)
        card = read_card(adapter.path)
        yield PlannedSpecialist(name, adapter.model, about[adapter.model], adapter.path, adapter.note, card)
    with_adapters = {adapter.model for adapter in found.adapters}
    for path in found.models:
        if path not in with_adapters:
            yield PlannedSpecialist(_unique_name(model_name(path), names), path, about[path], card=read_card(path))


def _unique_name(text: str, taken: set[str]) -> str:
    """Return a valid name made from the name of a folder, a file, or ORG/NAME@COMMIT, and take it."""
    short = text.rpartition("/")[2].partition("@")[0].removesuffix(".gguf").lower()
    base = re.sub(r"[^a-z0-9._-]+", "-", short).strip("._-")[: _MAX_NAME - 3] or "model"
    name = next(name for name in (base, *(f"{base}-{n}" for n in range(2, 1000))) if name not in taken)
    taken.add(name)
    return name


def _describe_findings(found: "ModelFolder", specialists: list[PlannedSpecialist], folder: Path) -> Iterator[str]:
    for each in specialists:
        what = f"adapter {_relative(each.adapter, folder)} on " if each.adapter else ""
        note = f" ({each.note})" if each.note else ""
        yield f"found    {each.name}: {what}model {_relative(each.model, folder)}, {each.about_model}{note}"
    for path, why in found.skipped:
        yield f"skipped  {_relative(path, folder)}: {why}"


def _relative(path: Path, folder: Path) -> str:
    """Return the path relative to the folder if it is inside it."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _format_config(specialists: list[PlannedSpecialist], folder: Path, file: Path) -> str:
    home = file.absolute().parent
    check, serve = _next_commands(file, ["octet"])
    models = {each.model for each in specialists}
    lines = [
        f"# Written by octet init. Next: {check}, then {serve}",
        "# All keys: docs/configuration.md",
        "",
        "# The default answers what fits no other specialist: choose the most general one.",
        f"default: {_scalar(specialists[0].name)}",
    ]
    if len(models) == 1:
        model = specialists[0]
        lines.append(f"model: {_path_scalar(model.model, home)}  # {model.about_model}; of all specialists")
    if not folder.absolute().is_relative_to(home):
        lines.append(f"adapter_root: {_scalar(str(folder.absolute()))}  # operators may load adapters from here")
    lines += ["", "specialists:"]
    for each in specialists:
        lines += [f"  {line}".rstrip() for line in _specialist_lines(each, home, is_shared=len(models) == 1)]
    return "\n".join(lines) + "\n"


def _specialist_lines(each: PlannedSpecialist, home: Path, *, is_shared: bool) -> Iterator[str]:
    yield f"{_scalar(each.name)}:"
    card = each.card or {}
    facts = [f"{name} {_join(card[name])}" for name in _CARD_FIELDS if card.get(name)]
    if facts:
        yield f"  # its model card: {_one_line('; '.join(facts))}"
    if paragraph := _one_line(str(card.get("paragraph") or "")):
        yield f"  describe: {_scalar(paragraph)}  # from its model card; TODO: say in one sentence what it answers"
    else:
        yield "  # TODO: say in one sentence what it answers. Prompts are compared with it."
        yield f"  # describe: Answers questions about {each.name}, named in the words that prompts use."
    yield "  # TODO: add prompts that belong here; five or more make the routing good."
    yield "  # examples:"
    yield f"  #   - A typical question about {each.name}?"
    yield f"  # system: You are an expert in {each.name}.  # the system prompt of every request"
    if not is_shared:
        yield f"  model: {_path_scalar(each.model, home)}  # {each.about_model}"
    if each.adapter is not None:
        if each.note:
            yield f"  # {_one_line(each.note)}: check that this is its model"
        yield f"  adapters: {{{_scalar(each.name)}: {_path_scalar(each.adapter, home)}}}"
        yield f"  use_adapters: [{_scalar(each.name)}]"
    yield ""


def _path_scalar(path: Path, home: Path) -> str:
    """Return the path as YAML, with `./` before what a configuration would not read as a path."""
    text = _relative(path, home)
    return _scalar(f"./{text}" if text == DEMO_MODEL or text.startswith(("~", HUB_PREFIX)) else text)


def _join(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _one_line(text: str) -> str:
    """Return the text as the rest of a line, without markup of links, cut at a word."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", replace_unprintable(text)).strip()
    return plain if len(plain) <= _MAX_DESCRIPTION else plain[:_MAX_DESCRIPTION].rpartition(" ")[0] + " ..."


def _scalar(text: str) -> str:
    """Return the text as YAML: plain if it can only be read as itself, else quoted."""
    if re.fullmatch(r"[A-Za-z0-9_./]([A-Za-z0-9_./+ -]*[A-Za-z0-9_./+-])?", text) and text.lower() != "null":
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
