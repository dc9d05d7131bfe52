"""The metrics endpoint, and chat templates, which are rendered in a separate process."""

import asyncio
from dataclasses import replace

from jinja2 import TemplateError, meta

from octet.telemetry.exposition import Exposition, MetricsListener
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.text.codec import ChatTemplate, TemplateLimits
from specialist.text.prompt import ChatTurn, TemplateRefused
from specialist.text.render_worker import create_environment
from tests.fuzz.parser import Parser

_SCRAPES = (
    b"GET /metrics HTTP/1.1\r\nhost: a\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n",
    b"GET /metrics?a=b HTTP/1.0\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
)
_VOCABULARY = sim_vocabulary()
_TEMPLATE = (_VOCABULARY.chat_template or "").encode()
_LIMITS = TemplateLimits(max_memory=256 << 20)
_TAGS = (
    *(b"{{", b"}}", b"{%", b"%}", b"{#", b"#}", b"{% for a in b %}", b"{% endfor %}", b"{% if a %}", b"{% else %}"),
    *(b"{% macro f() %}", b"{% include 'a' %}", b"|tojson", b".__class__", b"messages", b"{% generation %}", b"-%}"),
)
_HARM = (
    b"{{ 9 ** 9 ** 9 }}",
    b"{% for a in range(10 ** 9) %}{% endfor %}",
    b"{{ 'a' * 10 ** 9 }}",
    b"{{ messages.pop() }}",
)


class _MetricsEndpoint(MetricsListener):
    """The metrics endpoint without a socket."""

    def __init__(self) -> None:
        self._exposition = Exposition()

    async def answered(self, raw: bytes) -> bytes:
        reader = asyncio.StreamReader(limit=8192)
        reader.feed_data(raw)
        reader.feed_eof()
        return await self._answer(reader)


def _scrape_metrics(raw: bytes) -> bytes:
    answer = asyncio.run(_MetricsEndpoint().answered(raw))
    if not answer.startswith(b"HTTP/1.1 ") or b"\r\n\r\n" not in answer:
        raise RuntimeError(f"not an HTTP response: {answer[:60]!r}")
    return answer


def _parse_template(raw: bytes) -> object:
    return meta.find_undeclared_variables(create_environment().parse(raw.decode("utf-8", "replace")))


def _render_template(raw: bytes) -> object:
    vocabulary = replace(_VOCABULARY, chat_template=raw.decode("utf-8", "replace"))
    template = ChatTemplate(vocabulary, limits=_LIMITS)
    try:
        return template.render([ChatTurn("user", "hello")])
    finally:
        template.close()


PARSERS = [
    Parser(
        "door.metrics",
        _scrape_metrics,
        (),
        _SCRAPES,
        "text",
        words=(b"\r\n", b"accept: ", b";q=", b"escaping=", b" /metrics "),
    ),
    Parser("template.parsed", _parse_template, (TemplateError, RecursionError), (_TEMPLATE,), "text", words=_TAGS),
    Parser(
        "template.rendered",
        _render_template,
        (TemplateRefused,),
        (_TEMPLATE,),
        "text",
        words=(*_TAGS, *_HARM),
        share=0.02,
    ),
]
