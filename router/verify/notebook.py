"""Lines that only a notebook understands: orders to it (`%magic`) and to its shell (`!pip`)."""

import re

_LINE = re.compile(
    r"^(?P<margin>[ \t]*)(?:[A-Za-z_][\w, \t]*=[ \t]*)?(?:%{1,2}[A-Za-z]|![^=\s]|![ \t]+\w)(?:[^\n]*\\\n)*[^\n]*",
    re.MULTILINE,
)
_CELL = re.compile(r"\s*%%(?P<magic>\w+)")
_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "py", "memit", "mprun"})


def without_notebook_lines(code: str) -> str:
    """Every other line stays where it is."""
    return _LINE.sub(lambda found: f"{found['margin']}pass" + "\n" * found[0].count("\n"), code)


def is_for_another(code: str) -> bool:
    """A cell in another language, or nothing but orders to the notebook."""
    cell = _CELL.match(code)
    if cell is not None and cell["magic"] not in _PYTHON_CELLS:
        return True
    return _LINE.search(code) is not None and not _LINE.sub("", code).strip()
