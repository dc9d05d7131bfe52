"""Renders one chat template in its own process, which may be killed at any moment.

Run as a script, with jinja2 and the standard library only. One JSON object per line: first {source, aliases,
max_characters, max_memory, seconds}, answered by {variables} or {error}; then {variables, now, marked}, each
answered by {text} or {error}.
"""

import json
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from math import ceil
from typing import Any, cast

from jinja2 import Environment, Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.optimizer import optimize
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

COMPARING_METHODS = frozenset(
    {"count", "endswith", "find", "index", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind"}
    | {"rindex", "rpartition", "rsplit", "rstrip", "split", "startswith", "strip"}
)
COMPARING_FILTERS = frozenset({"replace", "trim"})
TEMPLATE_FAULTS = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError)


class TemplateRefusal(Exception):
    """A template called raise_exception, or exceeded a limit."""


class Generation(Extension):
    """Renders the content of `{% generation %}` unchanged. The tag marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def create_environment() -> Environment:
    """Return an environment with the whitespace rules, filters and functions that transformers uses."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _refuse
    return env


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise TemplateRefusal(str(message))


def alias_marker(aliases: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces each control token in a string with its alias. Longer tokens match first."""
    if not aliases:
        return lambda text: text
    longest_first = sorted(aliases, key=lambda text: (-len(text), text))
    control = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: control.sub(lambda found: aliases[found[0]], text)


def mark_control_tokens(node: nodes.Node, put_aliases: Callable[[str], str]) -> None:
    """Replace control tokens with aliases in text that the template writes, but not in text that it only compares."""
    if isinstance(node, nodes.TemplateData):
        node.data = put_aliases(node.data)
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        node.value = put_aliases(node.value)
    for child in _written(node):
        mark_control_tokens(child, put_aliases)


def _written(node: nodes.Node) -> Iterator[nodes.Node]:
    match node:
        case nodes.Compare() | nodes.Test():
            return
        case nodes.Call(node=nodes.Getattr(attr=attr)) if attr in COMPARING_METHODS:
            yield node.node
        case nodes.Filter(name=name, node=nodes.Node() as value) if name in COMPARING_FILTERS:
            yield value
        case _:
            yield from node.iter_child_nodes()


class TemplateRenderer:
    def __init__(self, source: str, aliases: Mapping[str, str], max_characters: int) -> None:
        env = create_environment()
        self.variables = sorted(meta.find_undeclared_variables(env.parse(source)))
        self._plain = env.from_string(source)
        # optimising folds constants, so that a control token is in one piece
        tree = cast(nodes.Template, optimize(env.parse(source), env))
        mark_control_tokens(tree, alias_marker(aliases))
        self._marked = env.from_string(tree)
        self._max_characters = max_characters

    def answer(self, request: Mapping[str, Any]) -> dict[str, str]:
        template = self._marked if request["marked"] else self._plain
        moment = datetime.fromisoformat(request["now"])
        return {"text": "".join(self._bounded(template, {**request["variables"], "strftime_now": moment.strftime}))}

    def _bounded(self, template: Template, variables: Mapping[str, Any]) -> Iterator[str]:
        written = 0
        for piece in template.generate(variables):
            written += len(piece)
            if written > self._max_characters:
                raise TemplateRefusal(f"the output is above the limit of {self._max_characters} characters")
            yield piece


def allow_seconds(seconds: float) -> None:
    """Let the kernel end this process after this much more CPU time, in case the parent process does not kill it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


def run_guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except TemplateRefusal as refusal:
        return {"error": str(refusal)}
    except MemoryError:
        return {"error": "the template needs more memory than allowed"}
    except TEMPLATE_FAULTS as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer the lines of standard input. The first line is the setup; each other line is a conversation."""
    setting = json.loads(sys.stdin.readline())
    limits = {resource.RLIMIT_AS: setting["max_memory"], resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    allow_seconds(setting["seconds"])
    made: list[TemplateRenderer] = []

    def make() -> dict[str, Any]:
        made.append(TemplateRenderer(setting["source"], setting["aliases"], setting["max_characters"]))
        return {"variables": made[0].variables}

    print(json.dumps(run_guarded(make)), flush=True)
    for line in sys.stdin if made else ():
        allow_seconds(setting["seconds"])
        request = json.loads(line)
        print(json.dumps(run_guarded(partial(made[0].answer, request))), flush=True)


if __name__ == "__main__":
    main()
