"""The C++ code in an answer, and the translation units in which it is compiled."""

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from router.verify.fences import CodeBlock, extract_blocks

ANSWER_FILE = f"<answer-{secrets.token_hex(8)}>"
"""The name of the answer's file. No answer can know it, so no answer can forge a line of the compiler's output."""

PieceKind = Literal["directive", "definition", "declaration", "statement"]

MOST_ARRANGED = 64 << 10  # characters; longer code is compiled unchanged


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
_GOES_ON = frozenset(";,)=.+-*/<>?:&|^%!(")  # after a closing brace, these characters continue the piece
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
class CodePiece:
    kind: PieceKind
    text: str
    line: int


def mask_literals(code: str) -> str:
    """Replace comments and literals with spaces, keeping all offsets."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), code)


def strip_ellipses(code: str) -> str:
    """Remove `...` that marks an omission; parameter packs and `catch (...)` stay."""
    return _ELLIPSIS.sub("", code)


def strip_line_directives(code: str) -> str:
    """Remove `#line` directives, keeping all line numbers."""
    kept, at = [], 0
    for found in _LINE_DIRECTIVE.finditer(mask_literals(code)):
        kept += [code[at : found.start()], "\n" * found[0].count("\n")]
        at = found.end()
    return "".join([*kept, code[at:]])


def split_pieces(code: str) -> list[CodePiece]:
    mask = mask_literals(code)
    line, at = 1, 0
    pieces = []
    for start, end in _spans(mask):
        line += code.count("\n", at, start)
        at = start
        if mask[start:end].strip():
            pieces.append(CodePiece(_piece_kind(mask[start:end].strip()), code[start:end], line))
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
            if sign == "}" and depth == 0 and not _continues(mask, start, stop.end()):
                yield start, stop.end()
                start = stop.end()
        elif depth == 0:
            yield start, stop.end()
            start = stop.end()
    if mask[start:].strip():
        yield start, len(mask)


def _continues(mask: str, start: int, end: int) -> bool:
    after = mask[end : end + 200].lstrip()
    if after[:1] in _GOES_ON and after:
        return True
    first = _FIRST_WORD.match(mask, start, end)
    if first is not None and first[1] == "do":
        return after.startswith("while")
    return first is not None and first[1] in ("struct", "class", "union", "enum", "typedef") and bool(after)


def _piece_kind(text: str) -> PieceKind:
    if text.startswith("#"):
        return "directive"
    words = _WORD.findall(text[:400])
    first, rest = _leading_name(words)
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


def _leading_name(words: list[str]) -> tuple[str, list[str]]:
    """Return the first qualified name, and the words after it."""
    end = 1
    while end + 1 < len(words) and (words[end] == "::" or words[end - 1] == "::"):
        end += 1
    return "".join(words[:end]), words[end:]


def wrap_statements(pieces: list[CodePiece], number: int = 0) -> str:
    """Put all statements, and the declarations after the first statement, into a function. Line numbers are kept."""
    outside: list[str] = []
    inside: list[str] = []
    for piece in pieces:
        belongs_inside = piece.kind == "statement" or (piece.kind == "declaration" and inside)
        (inside if belongs_inside else outside).append(f'\n# {piece.line} "{ANSWER_FILE}"\n{piece.text}')
    if not inside:
        return "".join(outside)
    return "".join([*outside, f"\nauto octet_fragment_{number}() {{", *inside, "\n}\n"])


def is_whole_program(code: str) -> bool:
    """Whether the code has a `main`, so that no code around it can be missing."""
    return re.search(r"\bmain\s*\(", mask_literals(code)) is not None


_ENDS = (";", "{", "}", "(", ")", ",", ":", ">", "\\", "*/", "&&", "||", "<<", "+", "=")
_BEGINS = ("#", "//", "/*", "*", "}", "{", "template", "std::", "public:", "private:")
_LISTED = re.compile(r"\d+[.)] |[-•] ")
_SURE_SIGNS = re.compile(
    r"^[ \t]*#[ \t]*include\b|\bint\s+main\s*\(|\bstd::|\btemplate\s*<|\busing\s+namespace\b|;$|^[ \t]*\}", re.MULTILINE
)


def looks_like_cpp(text: str) -> bool:
    """Whether most lines look like code, and at least one is certainly code."""
    lines = [line.strip() for line in text[:MOST_ARRANGED].splitlines() if line.strip()]
    if not lines or _SURE_SIGNS.search(text[:MOST_ARRANGED]) is None:
        return False
    code = [line for line in lines if _is_shaped_like_code(line)]
    return len(code) >= 0.6 * len(lines) and any(line.endswith((";", "}", "{")) for line in code)


def _is_shaped_like_code(line: str) -> bool:
    return not _LISTED.match(line) and (line.split("//")[0].rstrip().endswith(_ENDS) or line.startswith(_BEGINS))


def brace_balance(code: str) -> int:
    """Return the number of opened braces minus the number of closed braces."""
    mask = mask_literals(code)
    return mask.count("{") - mask.count("}")


CPP_TAGS = frozenset({"cpp", "c++", "cc", "cxx", "c", "h", "hpp", "hxx", "hh", "h++", "cppm", "ino", "cuda-cpp"})
_UNTAGGED = frozenset({"", "code", "text", "plaintext", "txt"})
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
_LONGEST_REMARK = 200  # characters
_USING_STD = "\nusing namespace std;\n"
_QUESTION = '\n# 1 "question"\n'
_ANSWER = f'\n# 1 "{ANSWER_FILE}"\n'
MOST_BLOCKS = 12
_MOST_QUESTION = 256 << 10  # characters; the rest of a question is ignored


@dataclass(frozen=True, slots=True)
class CppUnit:
    code: str
    context: str = ""  # code of the question and of earlier blocks, on which it may depend
    is_expendable: bool = False  # whether the answer says that this code is wrong

    @property
    def is_whole(self) -> bool:
        return is_whole_program(self.code)

    @property
    def needs_modules(self) -> bool:
        return _MODULES.search(mask_literals(self.code)) is not None


@dataclass(frozen=True, slots=True)
class CppForm:
    text: str
    wraps: bool  # whether its statements were put into a function


def extract_cpp(text: str) -> list[CodeBlock]:
    """Return the fenced C++; without fences, the whole text if it looks like code."""
    blocks = extract_blocks(text)
    if not blocks:
        return [CodeBlock("cpp", text)] if looks_like_cpp(text) else []
    found = [
        block
        for block in blocks
        if block.code.strip()
        and (block.language in CPP_TAGS or (block.language in _UNTAGGED and looks_like_cpp(block.code)))
    ]
    return found[:MOST_BLOCKS]


def extract_units(question: str, answer: str) -> list[CppUnit]:
    """Return a unit, with its context, for each block of the answer that does not repeat the question."""
    question = question[:_MOST_QUESTION]
    asked = extract_cpp(question)
    repeated = "".join(question.split())
    given = strip_line_directives("\n".join(block.code for block in asked))
    units: list[CppUnit] = []
    for block in extract_cpp(answer):
        code = strip_ellipses(block.code)
        if "".join(code.split()) in repeated:
            continue
        code = strip_line_directives(code)
        if brace_balance(code) < 0 < brace_balance(question_code := given or strip_line_directives(question)):
            code = f"{question_code}\n{code}"
        before = "\n".join(unit.code for unit in units if not unit.is_expendable)
        context = f"{given}\n{before}".strip() if len(given) + len(before) <= MOST_ARRANGED else ""
        units.append(CppUnit(code, context, _is_expendable(block)))
    return units


def _is_expendable(block: CodeBlock) -> bool:
    heading = block.heading[-_LONGEST_REMARK:]
    says_wrong = _SAYS_WRONG.search(heading) is not None and _SAYS_RIGHT.search(heading) is None
    remarks = [line.partition("//")[2] for line in block.code.split("\n") if "//" in line]
    return says_wrong or any(_SAYS_ERROR.match(remark[:_LONGEST_REMARK]) for remark in remarks)


def forms_of_unit(unit: CppUnit) -> Iterator[CppForm]:
    """Yield the forms in which the unit is compiled, in the order in which they are tried."""
    if len(unit.code) > MOST_ARRANGED:
        yield CppForm(_ANSWER + unit.code, wraps=False)
        return
    pieces = split_pieces(unit.code)
    if any(piece.kind == "statement" for piece in pieces) and not unit.is_whole:
        yield CppForm(_USING_STD + wrap_statements(pieces), wraps=True)
    yield CppForm(_ANSWER + unit.code, wraps=False)
    yield CppForm(_USING_STD + _ANSWER + unit.code, wraps=False)


def forms_in_context(unit: CppUnit) -> Iterator[CppForm]:
    """Yield the context followed by the unit; then again with `using namespace std` in front."""
    context = wrap_local(unit.context, 1)
    code = wrap_local(unit.code, 0)
    for before in ("", _USING_STD):
        yield CppForm(f"{before}{_QUESTION}{context}{_ANSWER}{code}", wraps=True)


def forms_joined(units: Sequence[CppUnit]) -> Iterator[CppForm]:
    """Yield all units as one program, headers first and `main` last; then again with `using namespace std` in front."""
    ordered = sorted(units, key=lambda unit: (not _HEADER.search(unit.code), unit.is_whole))
    parts = [wrap_local(unit.code, number) for number, unit in enumerate(ordered)]
    for before in ("", _USING_STD):
        yield CppForm(before + "".join(_ANSWER + part for part in parts), wraps=True)


def wrap_local(code: str, number: int) -> str:
    """Remove local includes, and put statements into a function unless the code is a whole program."""
    code = _LOCAL_INCLUDE.sub("", code)
    pieces = split_pieces(code) if len(code) <= MOST_ARRANGED else []
    has_statements = any(piece.kind == "statement" for piece in pieces)
    return wrap_statements(pieces, number) if has_statements and not is_whole_program(code) else code
