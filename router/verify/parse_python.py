"""Parses Python from standard input, in a process of its own: nesting that is deep enough kills the parser."""

import ast
import json
import os
import resource
import sys
import warnings

from router.verify.notebook import without_notebook_lines

MEMORY = 1 << 30
TOO_DEEP = "nested too deeply, or too large, to be parsed"


def main() -> None:
    os.nice(19)
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    print(json.dumps([trouble_with(block) for block in json.load(sys.stdin)]))


def trouble_with(source: str) -> str:
    """Empty where it is Python, or is without what is a notebook's: `%` and `!` begin lines of Python as well."""
    trouble = _trouble_with(source)
    plain = without_notebook_lines(source) if trouble else source
    return trouble if plain == source else _trouble_with(plain)


def _trouble_with(source: str) -> str:
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, UnicodeError) as error:
        return str(error)
    except (RecursionError, MemoryError):
        return TOO_DEEP
    return ""
