"""Pages of several processes as one, as text: reading them figure by figure would take ten times as long, and whoever
serves requests shares the interpreter with whoever writes this."""

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_KEY, _VALUE = r"[a-zA-Z_][a-zA-Z0-9_]*", r'(?:[^"\\\n]|\\["\\n])*'
_LABEL = f'{_KEY}="{_VALUE}"'
_NUMBER = r"(?:[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN)"
_FAMILY = re.compile(
    rf"(?:# HELP (?P<helped>{_NAME}) [^\n]*\n)?"
    rf"# TYPE (?P<name>{_NAME}) (?P<kind>counter|gauge|histogram)\n"
    r"(?P<body>(?:[^#\n][^\n]*\n)*)"
)
_SAMPLE = re.compile(rf"^({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?,?\}})? ({_NUMBER})$", re.MULTILINE)
_LABELS = re.compile(f'({_KEY})="({_VALUE})"')
_PARTS = ("_bucket", "_sum", "_count")
_WHOSE = frozenset({"specialist", "replica"})
_Family = tuple[str, str, str, str]
"""Its name, its kind, its head, and its samples."""


class Malformed(ValueError):
    """A page that is none."""


class Splice:
    """Not for threads."""

    def __init__(self, up: str, about: str) -> None:
        """`up` is the family that says of each process whether it told anything."""
        self._up = [f"# HELP {up} {about}\n# TYPE {up} gauge\n"]
        self._up_name = up
        self._heads: dict[str, tuple[str, str]] = {}
        """By family: its kind, and how it begins."""
        self._samples: dict[str, list[str]] = {}
        """By family and process."""
        self._labels: dict[str, str] = {"": ""}
        """As processes write them, and without those that say whose they are: the same ones come again and again."""

    def tell(self, specialist: str, replica: str, is_up: bool) -> None:
        self._up.append(f"{self._up_name}{{{_whose(specialist, replica)}}} {float(is_up)}\n")

    def add(self, page: bytes, specialist: str, replica: str) -> None:
        """Raises Malformed, and has added nothing then. A family that another told as something else is left out."""
        whose = _whose(specialist, replica)
        for name, kind, head, samples in self._read(page, whose):
            known, _ = self._heads.setdefault(name, (kind, head))
            if known == kind:
                self._samples.setdefault(name, []).append(samples)

    def page(self) -> bytes:
        told = (part for name, (_, head) in self._heads.items() for part in (head, *self._samples[name]))
        return "".join((*self._up, *told)).encode()

    def _read(self, page: bytes, whose: str) -> list[_Family]:
        try:
            text = page.decode()
        except UnicodeDecodeError as error:
            raise Malformed("it is no UTF-8") from error
        families: dict[str, _Family] = {}
        at = 0
        while at < len(text):
            found = _FAMILY.match(text, at)
            if found is None or found["helped"] not in (None, found["name"]) or found["name"] in families:
                raise Malformed(f"there is no family at {at}")
            name, kind = found["name"], found["kind"]
            families[name] = name, kind, text[at : found.start("body")], self._spliced(name, kind, found["body"], whose)
            at = found.end()
        return list(families.values())

    def _spliced(self, family: str, kind: str, body: str, whose: str) -> str:
        found = _SAMPLE.findall(body)
        names = {f"{family}{part}" for part in _PARTS} if kind == "histogram" else {family}
        if len(found) != body.count("\n") or not names.issuperset(name for name, _, _ in found):
            raise Malformed(f"{family} has what is no sample of it")
        known = self._labels
        for labels in {labels for _, labels, _ in found if labels not in known}:
            known[labels] = _stripped(labels)
        return "".join([f"{name}{{{known[labels]}{whose}}} {value}\n" for name, labels, value in found])


def _stripped(labels: str) -> str:
    """With a comma behind each."""
    kept = [f'{name}="{value}",' for name, value in _LABELS.findall(labels) if name not in _WHOSE]
    return "".join(kept)


def _whose(specialist: str, replica: str) -> str:
    return f'specialist="{_escaped(specialist)}",replica="{_escaped(replica)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
