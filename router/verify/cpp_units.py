"""What of an answer is C++, and in which forms it may be compiled: fair to somebody who answers with less than a whole
program."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from router.verify.cpp_text import (
    MOST_ARRANGED,
    OWN,
    arranged,
    balance,
    is_of_statements,
    is_whole,
    looks_like_cpp,
    masked,
    pieces_of,
    without_ellipses,
    without_line_directives,
    without_local_includes,
)
from router.verify.fences import Block, blocks_in

_CPP = frozenset({"cpp", "c++", "cc", "cxx", "c", "h", "hpp", "hxx", "hh", "h++", "cppm", "ino", "cuda-cpp"})
_UNSAID = frozenset({"", "code", "text", "plaintext", "txt"})
_HEADER = re.compile(r"^[ \t]*#[ \t]*(?:pragma[ \t]+once|ifndef[ \t]+\w+_H(?:PP|XX)?_*)[ \t]*$", re.MULTILINE)
_MODULES = re.compile(r"^[ \t]*(?:export[ \t]+)?(?:import|module)\b[^=(;\n]*;", re.MULTILINE)
_NO_COMPILING = r"\b(?:(?:does|will|would) not compile|(?:does|wo|would)n.t compile|fails to compile|ill-formed)\b"
_BAD = r"(?:wrong|incorrect|invalid|bad|broken|buggy)"
_SAYS_WRONG = re.compile(
    rf"{_NO_COMPILING}|^\W*{_BAD}\W*$|\b{_BAD}:|\b{_BAD} (?:example|code|version|way|snippet|program)\b"
    r"|\b(?:don.t|do not|never) do (?:this|that)\b",
    re.IGNORECASE,
)
_SAYS_RIGHT = re.compile(
    r"\b(?:fix\w*|correct(?:ed|ly|ion)?|right|working|works|better|good|instead|replac\w+)\b", re.IGNORECASE
)
_SAYS_ERROR = re.compile(rf"\W*(?:error:|compil\w+[ -](?:time )?error\b)|.*{_NO_COMPILING}", re.IGNORECASE)
_LONGEST_REMARK = 200
"""Characters."""
_USING_STD = "\nusing namespace std;\n"
_QUESTION = '\n# 1 "question"\n'
_ANSWER = f'\n# 1 "{OWN}"\n'
MOST_BLOCKS = 12
_MOST_QUESTION = 256 << 10
"""Characters that are looked at."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Code that is judged as one."""

    code: str
    context: str = ""
    """What it may lean on, where it does not stand by itself."""
    is_expendable: bool = False
    """Its author says that it is wrong."""

    @property
    def is_whole(self) -> bool:
        return is_whole(self.code)

    @property
    def needs_modules(self) -> bool:
        return _MODULES.search(masked(self.code)) is not None


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compile a unit."""

    text: str
    wraps: bool
    """Its statements are in a function."""


def code_in(text: str) -> list[Block]:
    """Fenced C++, or the text itself where it is nothing but code."""
    blocks = blocks_in(text)
    if not blocks:
        return [Block("cpp", text)] if looks_like_cpp(text) else []
    return [block for block in blocks if _is_cpp(block)][:MOST_BLOCKS]


def _is_cpp(block: Block) -> bool:
    if not block.code.strip():
        return False
    return block.language in _CPP or (block.language in _UNSAID and looks_like_cpp(block.code))


def units_of(question: str, answer: str) -> list[Unit]:
    """One for each block of the answer that is not the question's own. Every one may lean on those before it."""
    question = question[:_MOST_QUESTION]
    asked = code_in(question)
    known = _plain(question)
    given = without_line_directives("\n".join(block.code for block in asked))
    units: list[Unit] = []
    for block in code_in(answer):
        code = without_ellipses(block.code)
        if _plain(code) in known:
            continue
        code = without_line_directives(code)
        if balance(code) < 0 < balance(question_code := given or without_line_directives(question)):
            code = f"{question_code}\n{code}"
        before = "\n".join(unit.code for unit in units if not unit.is_expendable)
        units.append(Unit(code, _context(given, before), _is_expendable(block)))
    return units


def _context(given: str, before: str) -> str:
    return f"{given}\n{before}".strip() if len(given) + len(before) <= MOST_ARRANGED else ""


def _is_expendable(block: Block) -> bool:
    heading = block.heading[-_LONGEST_REMARK:]
    says_wrong = _SAYS_WRONG.search(heading) is not None and _SAYS_RIGHT.search(heading) is None
    return says_wrong or any(_SAYS_ERROR.match(remark[:_LONGEST_REMARK]) for remark in _remarks(block.code))


def _remarks(code: str) -> Iterator[str]:
    for line in code.split("\n"):
        _, slashes, remark = line.partition("//")
        if slashes:
            yield remark


def _plain(text: str) -> str:
    return "".join(text.split())


def forms_of(unit: Unit) -> Iterator[Form]:
    """In the order in which they are tried."""
    if len(unit.code) > MOST_ARRANGED:
        yield Form(_ANSWER + unit.code, wraps=False)
        return
    pieces = pieces_of(unit.code)
    if is_of_statements(pieces) and not unit.is_whole:
        yield Form(_USING_STD + arranged(pieces), wraps=True)
    yield Form(_ANSWER + unit.code, wraps=False)
    yield Form(_USING_STD + _ANSWER + unit.code, wraps=False)


def in_context(unit: Unit) -> Iterator[Form]:
    """After what it may lean on, whose own files it needs no more; first without `std`, which has names of its own."""
    context = _whole_text(without_local_includes(unit.context), 1)
    code = _whole_text(without_local_includes(unit.code), 0)
    for before in ("", _USING_STD):
        yield Form(f"{before}{_QUESTION}{context}{_ANSWER}{code}", wraps=True)


def joined(units: Sequence[Unit]) -> Iterator[Form]:
    """All of them as the files of one program: headers first, `main` last; first without `std`."""
    ordered = sorted(units, key=lambda unit: (not _HEADER.search(unit.code), unit.is_whole))
    parts = [_whole_text(without_local_includes(unit.code), number) for number, unit in enumerate(ordered)]
    for before in ("", _USING_STD):
        yield Form(before + "".join(_ANSWER + part for part in parts), wraps=True)


def _whole_text(code: str, number: int) -> str:
    pieces = pieces_of(code) if len(code) <= MOST_ARRANGED else []
    return arranged(pieces, number) if is_of_statements(pieces) and not is_whole(code) else code
