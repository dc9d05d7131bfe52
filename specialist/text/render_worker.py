"""Renders one chat template in a process of its own, which may be killed at any moment.

Run as a script; it stands on jinja2 and the standard library. One JSON object a line: first {source, aliases,
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


class Refusal(Exception):
    """What a template says with raise_exception, or a limit it went over."""


class Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its content simply stands."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def environment() -> Environment:
    """As transformers renders: the same whitespace rules, filters and functions."""
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
    raise Refusal(str(message))


def marker(aliases: Mapping[str, str]) -> Callable[[str], str]:
    """Puts its alias for every control token in a text, the longest first."""
    if not aliases:
        return lambda text: text
    longest_first = sorted(aliases, key=lambda text: (-len(text), text))
    control = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: control.sub(lambda found: aliases[found[0]], text)


def mark(node: nodes.Node, put_aliases: Callable[[str], str]) -> None:
    """Give what the template itself writes its aliases; what it compares with other text stays as it is."""
    if isinstance(node, nodes.TemplateData):
        node.data = put_aliases(node.data)
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        node.value = put_aliases(node.value)
    for child in _written(node):
        mark(child, put_aliases)


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


class Renderer:
    def __init__(self, source: str, aliases: Mapping[str, str], max_characters: int) -> None:
        env = environment()
        self.variables = sorted(meta.find_undeclared_variables(env.parse(source)))
        self._plain = env.from_string(source)
        # puts together what is constant, so that a control token is in one piece
        tree = cast(nodes.Template, optimize(env.parse(source), env))
        mark(tree, marker(aliases))
        self._marked = env.from_string(tree)
        self._max_characters = max_characters

    def render(self, variables: Mapping[str, Any], now: str, marked: bool) -> str:
        template = self._marked if marked else self._plain
        moment = datetime.fromisoformat(now)
        return "".join(self._bounded(template, {**variables, "strftime_now": moment.strftime}))

    def _bounded(self, template: Template, variables: Mapping[str, Any]) -> Iterator[str]:
        written = 0
        for piece in template.generate(variables):
            written += len(piece)
            if written > self._max_characters:
                raise Refusal(f"its output is above the limit of {self._max_characters} characters")
            yield piece


def limit_process(max_memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))


def allow_seconds(seconds: float) -> None:
    """The processor time from now on, after which the kernel ends this process, should nobody else do it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


def answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Refusal as refusal:
        return {"error": str(refusal)}
    except MemoryError:
        return {"error": "it needs more memory than it may have"}
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """The first line sets up, each other one is a conversation."""
    setting = json.loads(sys.stdin.readline())
    limit_process(setting["max_memory"])
    allow_seconds(setting["seconds"])
    made: list[Renderer] = []

    def make() -> dict[str, Any]:
        made.append(Renderer(setting["source"], setting["aliases"], setting["max_characters"]))
        return {"variables": made[0].variables}

    say(answered(make))
    for line in sys.stdin if made else ():
        allow_seconds(setting["seconds"])
        request = json.loads(line)
        say(answered(partial(rendered, made[0], request)))


def rendered(renderer: Renderer, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": renderer.render(**request)}


def say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
