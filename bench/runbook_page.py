"""docs/runbook.md as a page of the router, because a user's router may have no internet: `make pages` writes it."""

import re
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "runbook.md"
PAGE = ROOT / "router" / "api" / "http" / "page" / "runbook.html"
_PAGE = """<!doctype html>
<!-- Written from docs/runbook.md by `make pages`. -->
<html lang="en">
<head>
<meta charset="utf-8">
<title>Runbook - Octet</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="theme.css">
<link rel="stylesheet" href="page.css">
<script type="module" src="theme.js" blocking="render"></script>
</head>
<body>
<header class="top"><a href="../dashboard">← Dashboard</a>
<nav aria-label="Sections of this page">
{sections}
</nav></header>
<main class="prose">
{content}
</main>
</body>
</html>
"""


def render_runbook(markdown: str) -> str:
    """Return the page. Its sections have the anchors of the Markdown, and each finding's row the anchor
    `finding-KIND`."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(markdown)
    sections = []
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            title = tokens[number + 1].content
            token.attrSet("id", _anchor(title))
            token.attrSet("tabindex", "-1")
            sections += [f'<a href="#{_anchor(title)}">{title}</a>'] if token.tag == "h2" else []
        elif token.type == "th_open":
            token.attrSet("scope", "col")
        elif token.type == "tr_open" and (kind := re.fullmatch(r"\*(\w+)\*", tokens[number + 2].content)):
            token.attrSet("id", f"finding-{kind[1]}")
        elif token.children:
            token.children = _without_foreign_links(token.children)
    content = reader.renderer.render(tokens, reader.options, {})
    return _PAGE.format(sections="\n".join(sections), content=content.strip())


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _without_foreign_links(tokens: Sequence[Token]) -> list[Token]:
    """Remove links to other documents, which the router does not serve. Their text stays."""
    found, is_kept = [], True
    for token in tokens:
        if token.type == "link_open":
            is_kept = str(token.attrGet("href")).startswith("#")
        if is_kept or not token.type.startswith("link_"):
            found.append(token)
    return found
