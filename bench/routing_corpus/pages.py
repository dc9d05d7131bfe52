"""Reads the documentation of a package: HTML, Markdown, reStructuredText, POD and manual pages become sections
with a heading, paragraphs and code."""

import gzip
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

_SKIPPED = frozenset({"script", "style", "nav", "footer", "sup", "table", "head"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4"})
_PARAGRAPHS = frozenset({"p", "dd"})
_CHROME = frozenset({"Navigation", "Table of Contents", "This Page", "Contents"})
_SPACE = re.compile(r"\s+")
_MARKS = re.compile(r"[¶#§\u200b\uf0c1]+$")
_NUMBER = re.compile(r"^(?:Chapter\s+)?(?:[\dA-Z]\.)?[\d.]*\.?\s+(?=\S)|^[\d.]+\s*(?=[A-Z])")


@dataclass(slots=True)
class Section:
    page: str  # the title of the page
    heading: str
    paragraphs: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections: list[Section] = []
        self._kind = ""  # of the block that is being read: heading, paragraph or code
        self._text: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipped.append(tag)
        elif tag in _HEADINGS or tag in _PARAGRAPHS or tag == "pre":
            self._close()
            self._kind = "heading" if tag in _HEADINGS else "code" if tag == "pre" else "paragraph"
        elif tag == "br" and self._kind == "code":
            self._text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped and tag == self._skipped[-1]:
            self._skipped.pop()
        elif tag in _HEADINGS or tag in _PARAGRAPHS or tag == "pre":
            self._close()

    def handle_data(self, data: str) -> None:
        if self._kind and not self._skipped:
            self._text.append(data)

    def _close(self) -> None:
        text, kind = "".join(self._text), self._kind
        self._text, self._kind = [], ""
        if not text.strip():
            return
        if kind == "heading":
            heading = clean_heading(text)
            if heading in _CHROME:
                return
            page = self.sections[0].page if self.sections else heading
            self.sections.append(Section(page, heading))
        elif self.sections:
            last = self.sections[-1]
            if kind == "code":
                last.codes.append(text.strip("\n").expandtabs(4).replace("\xa0", " ").rstrip())
            else:
                last.paragraphs.append(_SPACE.sub(" ", text).strip())


def clean_heading(text: str) -> str:
    return _NUMBER.sub("", _MARKS.sub("", _SPACE.sub(" ", text.replace("\ufffd", " ")).strip()).strip()).strip()


def read_html(text: str) -> list[Section]:
    parser = _PageParser()
    parser.feed(text)
    parser.close()
    return parser.sections


_FENCE = re.compile(r"^```.*?$\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MD_LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])")


def read_markdown(text: str) -> list[Section]:
    sections: list[Section] = []
    for part in re.split(r"(?m)^(?=#{1,4} )", text):
        head, _, body = part.partition("\n")
        if not head.startswith("#"):
            continue
        heading = clean_heading(_MD_LINK.sub(r"\1", head.lstrip("#")).replace("`", ""))
        prose = _MD_LINK.sub(r"\1", re.sub(r"<!--.*?-->", "", _FENCE.sub("\n\n", body), flags=re.DOTALL))
        paragraphs = [_SPACE.sub(" ", each).strip() for each in re.split(r"\n\s*\n", prose)]
        page = sections[0].page if sections else heading
        codes = [code.rstrip() for code in _FENCE.findall(body)]
        sections.append(Section(page, heading, [each for each in paragraphs if _is_prose(each)], codes))
    return sections


def _is_prose(text: str) -> bool:
    return bool(text) and text[0] not in "*-+|<>[{" and len(text) > 20


_POD_MARKUP = re.compile(r"[A-Z]<+\s?([^<>|]*?)(?:\|[^<>]*)?\s?>+")


def read_pod(text: str) -> list[Section]:
    sections: list[Section] = []
    for part in re.split(r"(?m)^(?==head[12] |=item )", text):
        if not part.startswith(("=head", "=item")):
            continue
        head, _, body = part.partition("\n")
        heading = clean_heading(_strip_pod(head.split(" ", 1)[1]))
        blocks = [block for block in re.split(r"\n\s*\n", body) if block.strip() and not block.startswith("=")]
        codes = ["\n".join(line[4:] for line in block.splitlines()) for block in blocks if block.startswith("    ")]
        prose = [_SPACE.sub(" ", _strip_pod(block)).strip() for block in blocks if not block.startswith((" ", "\t"))]
        sections.append(Section(sections[0].page if sections else heading, heading, prose, codes))
    return sections


def _strip_pod(text: str) -> str:
    return _POD_MARKUP.sub(r"\1", _POD_MARKUP.sub(r"\1", text))


_ESCAPES = {r"\-": "-", r"\(aq": "'", r"\(bu": "", r"\e": "\\", r"\&": "", r"\ ": " ", r"\(ga": "`", r"\(ti": "~"}
_FONT = re.compile(r"\\f(?:\[[^\]]*\]|\(..|.)|\\[|^%:/,]|\\s[-+]?\d")


def read_manual(text: str) -> list[Section]:
    """Return the sections of a manual page. The page's title is the text of NAME, such as `bind - bind a name`."""
    sections: list[Section] = []
    code: list[str] | None = None
    for line in text.splitlines():
        if line.startswith((".SH", ".SS")):
            sections.append(Section("", clean_heading(_strip_roff(line[3:]).strip('" '))))
            code = None
        elif not sections:
            continue
        elif line.startswith((".EX", ".nf")):
            code = []
        elif line.startswith((".EE", ".fi")):
            if code:
                sections[-1].codes.append("\n".join(code).strip("\n"))
            code = None
        elif code is not None:
            if not line.startswith("."):
                code.append(_strip_roff(line))
            elif line.startswith((".B", ".I")):
                code.append(_strip_roff(_QUOTES.sub("", line.split(" ", 1)[-1].strip('"'))))
        else:
            _add_roff_line(sections[-1].paragraphs, line)
    name = next((s.paragraphs[0] for s in sections if s.heading.upper() in _NAMES and s.paragraphs), "")
    for section in sections:
        section.page = _SPACE.sub(" ", name).strip()
        section.paragraphs = [each for part in section.paragraphs if (each := _SPACE.sub(" ", part).strip())]
    return sections


_QUOTES = re.compile(r'" ?| ?"')
_NAMES = frozenset({"NAME", "ИМЯ", "BEZEICHNUNG", "NAME 名称", "名称", "НАЗВАНИЕ"})


def _add_roff_line(paragraphs: list[str], line: str) -> None:
    if line.startswith((".PP", ".P", ".TP", ".LP", ".IP")) and not line.startswith(".PD"):
        paragraphs.append("")
        return
    if line.startswith(("'", '.\\"', "..")):
        return
    if line.startswith("."):
        macro, _, rest = line[1:].partition(" ")
        if macro not in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB"):
            return
        joined = rest.replace('"', "") if len(macro) == 1 else re.sub(r"(?<!\\) ", "", rest).replace('"', "")
        line = joined
    text = _strip_roff(line)
    if paragraphs:
        paragraphs[-1] += f" {text}"
    else:
        paragraphs.append(text)


def _strip_roff(text: str) -> str:
    text = _FONT.sub("", text)
    for escape, plain in _ESCAPES.items():
        text = text.replace(escape, plain)
    return re.sub(r"\\\(..|\\\[[^\]]*\]", "", text)


_RST_TITLE = re.compile(r"(?m)^(\S.*)\n([=\-~^'\"`#*+])\2{2,}[ \t]*$\n?")
_RST_CODE = re.compile(r"(?m)^\.\. code(?:-block)?::.*\n(?:[ \t]+:.*\n)*\n?((?:[ \t]+\S.*\n|[ \t]*\n)+)")
_RST_MARKUP = re.compile(r":\w+:`([^`<]+?)(?: ?<[^>]*>)?`|`([^`<]+?) ?<[^>]*>`_+|``?([^`]+)``?_*")


def read_rst(text: str) -> list[Section]:
    sections: list[Section] = []
    parts = _RST_TITLE.split(f"{text}\n")
    for heading, body in zip(parts[1::3], parts[3::3], strict=True):
        codes = [_dedent(code) for code in _RST_CODE.findall(body)]
        prose = _RST_MARKUP.sub(lambda match: match[1] or match[2] or match[3], _RST_CODE.sub("\n\n", body))
        paragraphs = [_SPACE.sub(" ", each).strip() for each in re.split(r"\n\s*\n", prose) if each[:1] not in " .-*"]
        title = clean_heading(heading.replace("`", ""))
        page = sections[0].page if sections else title
        sections.append(Section(page, title, [each for each in paragraphs if _is_prose(each)], codes))
    return sections


def _dedent(code: str) -> str:
    return textwrap.dedent(code.expandtabs(4)).strip("\n")


_READERS = {".html": read_html, ".htm": read_html, ".md": read_markdown, ".pod": read_pod, ".rst": read_rst}


def read_page(path: Path) -> list[Section]:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data, path = gzip.decompress(data), path.with_suffix("")
    text = data.decode("utf-8", "replace")
    reader = _READERS.get(path.suffix, read_manual if path.suffix[1:2].isdigit() else None)
    if reader is None:
        raise ValueError(f"{path}: no reader for {path.suffix!r}")
    return reader(text)


def sentences(section: Section, most: int = 320) -> str:
    """Return the first sentences of the section's prose, at most `most` characters."""
    text = next((each for each in section.paragraphs if len(each) > 40), "")
    if len(text) <= most:
        return text
    cut = text[:most].rfind(". ")
    return text[: cut + 1] if cut > 40 else text[:most].rsplit(" ", 1)[0]


def iter_paths(root: Path, globs: tuple[str, ...]) -> Iterator[Path]:
    for pattern in globs:
        yield from sorted(path for path in root.glob(pattern) if path.is_file())
