"""C++ as text: what is code in it, where its outermost pieces begin and end, and which of them belong into a
function."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

OWN = f"<answer-{secrets.token_hex(8)}>"
"""What the answer's file is called: no answer can know it, so none can write a line of the compiler's output."""

Kind = Literal["directive", "definition", "declaration", "statement"]

MOST_ARRANGED = 64 << 10
"""Characters; longer code is compiled as it stands."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|R"([^()\\\s"]{0,16})\(.*?(?:\)\1"|\Z)"""
    r"""|"(?:[^"\\\n]|\\.)*"?|(?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.)*'?""",
    re.DOTALL,
)
"""Comments and literals."""
_STOP = re.compile(r"[{}()\[\];]|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_FIRST_WORD = re.compile(r"\s*(\w*)")
_WORD = re.compile(r"::|[A-Za-z_]\w*|<<=|>>=|->|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|\S")
_GOES_ON = frozenset(";,)=.+-*/<>?:&|^%!(")
"""After a closing brace: the same piece."""
_STATEMENTS = _words(
    "if else for while do switch case default return try catch throw delete break continue goto co_await co_return "
    "co_yield"
)
_DEFINITIONS = _words(
    "struct class union enum namespace template using typedef concept extern static_assert friend inline"
)
_OPERATORS = _words("<< >> = += -= *= /= %= &= |= ^= <<= >>= ++ -- . -> [")
_STARTS_EXPRESSION = frozenset("*(!+-{;")
_DOTS = r"[ \t]*(?:\.\.\.|…)[ \t]*;?[ \t]*"
_ELLIPSIS = re.compile(rf"^{_DOTS}$|(?<=\{{){_DOTS}(?=\}})", re.MULTILINE)
_SPLICE = r"(?:\\\n)*"
_LINE_DIRECTIVE = re.compile(
    rf"^[ \t\v\f]*(?:\#|%{_SPLICE}:|\?\?=)(?:[ \t\v\f]|\\\n)*(?:{_SPLICE.join('line')}\b|\d)(?:[^\n]*\\\n)*[^\n]*",
    re.MULTILINE,
)
_LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"[^"/\n]*(?:/[^"\n]*)?".*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Piece:
    kind: Kind
    text: str
    line: int
    """Where it begins, from 1."""


def masked(code: str) -> str:
    """As long as before, but comments and literals are blank."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), code)


def without_ellipses(code: str) -> str:
    """Where an author leaves something out: not a pack, not `catch (...)`."""
    return _ELLIPSIS.sub("", code)


def without_local_includes(code: str) -> str:
    return _LOCAL_INCLUDE.sub("", code)


def without_line_directives(code: str) -> str:
    """Nobody is told that the code stands elsewhere. Every line stays where it is."""
    kept, at = [], 0
    for found in _LINE_DIRECTIVE.finditer(masked(code)):
        kept += [code[at : found.start()], "\n" * found[0].count("\n")]
        at = found.end()
    return "".join([*kept, code[at:]])


def pieces_of(code: str) -> list[Piece]:
    mask = masked(code)
    line, at = 1, 0
    pieces = []
    for start, end in _spans(mask):
        line += code.count("\n", at, start)
        at = start
        if mask[start:end].strip():
            pieces.append(Piece(_kind(mask[start:end].strip()), code[start:end], line))
    return pieces


def _spans(mask: str) -> Iterator[tuple[int, int]]:
    start = depth = 0
    for stop in _STOP.finditer(mask):
        sign = stop[0]
        if sign[-1:] not in "{}()[];" or len(sign) > 1:
            if depth == 0:
                if mask[start : stop.start()].strip():
                    yield start, stop.start()
                yield stop.start(), stop.end()
                start = stop.end()
        elif sign in "{([":
            depth += 1
        elif sign in "})]":
            depth = max(0, depth - 1)
            if sign == "}" and depth == 0 and not _goes_on(mask, start, stop.end()):
                yield start, stop.end()
                start = stop.end()
        elif depth == 0:
            yield start, stop.end()
            start = stop.end()
    if mask[start:].strip():
        yield start, len(mask)


def _goes_on(mask: str, start: int, end: int) -> bool:
    after = mask[end : end + 200].lstrip()
    if after[:1] in _GOES_ON and after:
        return True
    first = _FIRST_WORD.match(mask, start, end)
    if first is not None and first[1] == "do":
        return after.startswith("while")
    return first is not None and first[1] in ("struct", "class", "union", "enum", "typedef") and bool(after)


def _kind(text: str) -> Kind:
    if text.startswith("#"):
        return "directive"
    words = _WORD.findall(text[:400])
    first, rest = _name(words)
    if first in _STATEMENTS or first[:1] in _STARTS_EXPRESSION or first[:1].isdigit():
        return "statement"
    if first in _DEFINITIONS or first.startswith("[["):
        return "definition"
    following = rest[0] if rest else ""
    if following in _OPERATORS or (following == "(" and "{" not in text and text.endswith(";")):
        return "statement"
    if text.endswith("}") and "(" in text.partition("{")[0] and "=" not in text.partition("(")[0]:
        return "definition"
    return "declaration"


def _name(words: list[str]) -> tuple[str, list[str]]:
    """The first name with all its `::`, and what comes after it."""
    end = 1
    while end + 1 < len(words) and (words[end] == "::" or words[end - 1] == "::"):
        end += 1
    return "".join(words[:end]), words[end:]


def is_of_statements(pieces: list[Piece]) -> bool:
    return any(piece.kind == "statement" for piece in pieces)


def arranged(pieces: list[Piece], number: int = 0) -> str:
    """Definitions outside, and statements, with what is declared among them, inside a function. Every piece says from
    which line it comes."""
    outside: list[str] = []
    inside: list[str] = []
    for piece in pieces:
        belongs_inside = piece.kind == "statement" or (piece.kind == "declaration" and inside)
        (inside if belongs_inside else outside).append(f'\n# {piece.line} "{OWN}"\n{piece.text}')
    if not inside:
        return "".join(outside)
    return "".join([*outside, f"\nauto octet_fragment_{number}() {{", *inside, "\n}\n"])


def is_whole(code: str) -> bool:
    """A program: nothing around it can be missing."""
    return re.search(r"\bmain\s*\(", masked(code)) is not None


_ENDS = (";", "{", "}", "(", ")", ",", ":", ">", "\\", "*/", "&&", "||", "<<", "+", "=")
_BEGINS = ("#", "//", "/*", "*", "}", "{", "template", "std::", "public:", "private:")
_LISTED = re.compile(r"\d+[.)] |[-•] ")
_SURE_SIGNS = re.compile(
    r"^[ \t]*#[ \t]*include\b|\bint\s+main\s*\(|\bstd::|\btemplate\s*<|\busing\s+namespace\b|;$|^[ \t]*\}", re.MULTILINE
)


def looks_like_cpp(text: str) -> bool:
    """Most of its lines have the shape of code, and something in it is hardly anything else."""
    lines = [line.strip() for line in text[:MOST_ARRANGED].splitlines() if line.strip()]
    if not lines or _SURE_SIGNS.search(text[:MOST_ARRANGED]) is None:
        return False
    code = [line for line in lines if _is_shaped_like_code(line)]
    return len(code) >= 0.6 * len(lines) and any(line.endswith((";", "}", "{")) for line in code)


def _is_shaped_like_code(line: str) -> bool:
    return not _LISTED.match(line) and (line.split("//")[0].rstrip().endswith(_ENDS) or line.startswith(_BEGINS))


def balance(code: str) -> int:
    """Braces opened and not closed; negative where more are closed."""
    mask = masked(code)
    return mask.count("{") - mask.count("}")
