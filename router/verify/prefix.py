"""Verify an answer that was cut at its length by what is there: only its complete part is judged."""

import io
import re
import tokenize

from router.verify.verdict import Verdict, Verifier

MOST_CHARACTERS = 64 << 10  # a longer cut answer is not judged
_CUT = Verdict("skipped", "the answer was cut before anything in it was complete")
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)
_PYTHON = re.compile(r"py|ipython")
_CONTINUES = frozenset({"else", "elif", "except", "finally"})
# A string or comment that was cut reaches to the end of the text, so its content is not taken for code.
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
_CPP_PART = re.compile(
    r'R"([^()\\ \t\n]{0,16})\(.*?(?:\)\1"|\Z)'  # a raw string
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|//[^\n]*|/\*.*?(?:\*/|\Z)"
    r"|[(){}\[\];]",
    re.DOTALL,
)
_NEXT = re.compile(r"\s*(\S?)")


async def verify_cut(verifier: Verifier, question: str, answer: str) -> Verdict:
    """Verify the complete part of an answer that was cut. If the verifier needs the whole answer, the verdict is
    `skipped`. Raises only CancelledError, as the verifier does."""
    part = complete_part(verifier.name, answer)
    return _CUT if part is None else await verifier.verify(question, part)


def complete_part(verifier: str, answer: str) -> str | None:
    """Return the part of a cut answer that the named verifier can judge; None if there is none."""
    if verifier == "non_empty":
        return answer if answer.strip() else None
    complete = _COMPLETE.get(verifier.removesuffix(":required"))
    if complete is None or len(answer) > MOST_CHARACTERS:
        return None
    is_open, start = _find_open_block(answer)
    if not is_open:
        return answer if start else complete(answer)
    code = complete(answer[start:])
    if code is not None:
        return answer[:start] + code + "\n```\n"
    before = answer[:start].rstrip().rpartition("\n")[0]  # without the fence that opens the incomplete block
    return before if _FENCE.search(before) else None


def _find_open_block(answer: str) -> tuple[bool, int]:
    """Return whether the answer ends within a fenced block, and where the code of its last block begins (0: none)."""
    mark, start = "", 0
    for fence in _FENCE.finditer(answer):
        if not mark:
            mark, start = fence[1], fence.end() + 1
        elif fence[1].startswith(mark) and not fence[2].strip():
            mark = ""
    return bool(mark) and start < len(answer), start


def _complete_json(text: str) -> str | None:
    """Drop the value that was cut, and close what is open."""
    opened: list[str] = []
    safe = 0
    for part in _JSON_PART.finditer(text):
        mark = part[0]
        if mark in "{[":
            opened.append("}" if mark == "{" else "]")
            safe = part.end()
        elif mark in "}]":
            if opened:
                opened.pop()
            safe = part.end()
        elif mark == ",":
            safe = part.start()
    return text[:safe] + "".join(reversed(opened)) if safe else None


def _complete_python(text: str) -> str | None:
    """Return the top-level statements before the one that was cut. The last line may be part of a word."""
    text = text[: text.rfind("\n") + 1]
    depth, line, is_start, is_decorated = 0, 1, True, False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.INDENT:
                depth += 1
            elif token.type == tokenize.DEDENT:
                depth -= 1
            elif token.type == tokenize.NEWLINE:
                is_start = True
            elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
                if is_start and depth == 0 and token.string not in _CONTINUES:
                    line = line if is_decorated else token.start[0]
                    is_decorated = token.string == "@"
                is_start = False
    except (tokenize.TokenError, SyntaxError, IndentationError):
        pass  # the error is at the cut, or the verifier finds it in what is before it
    code = "".join(text.splitlines(keepends=True)[: line - 1])
    return code if code.strip() else None


def _complete_cpp(text: str) -> str | None:
    """Return the declarations before the one that was cut."""
    depth = safe = begun = 0
    has_body = is_function = False
    for part in _CPP_PART.finditer(text):
        mark = part[0]
        if mark in ("(", "[", "{"):
            if mark == "{" and depth == 0:
                head = text[begun : part.start()]
                is_function = "(" in head and "=" not in head
            depth += 1
        elif mark in (")", "]", "}"):
            depth -= 1
            if mark == "}" and depth == 0:
                has_body, begun = True, part.end()
                follows = _NEXT.match(text, begun)
                if is_function and follows is not None and follows[1] not in ("", ";", ",", ")"):
                    safe = begun
        elif mark == ";" and depth == 0:
            safe = begun = part.end()
        if depth < 0:
            break
    return text[:safe] if has_body and safe else None


_COMPLETE = {"json": _complete_json, "python": _complete_python, "cpp": _complete_cpp}
