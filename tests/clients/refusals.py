"""What the server refuses to its clients, and why: requests as clients would send them, and the answers recorded from
a real server."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bench.pages import markdown
from tests.clients import steps
from tests.clients.table import ROOT
from tests.patience import PATIENCE

RECORD = ROOT / "bench" / "results" / "client_refusals.jsonl"
CHAT, RESPONSES, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"
_HELLO: Any = [{"role": "user", "content": steps.HELLO}]
_IMAGE = "data:image/png;base64,iVBORw0KGgo="
_BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": _HELLO},
    RESPONSES: {"input": steps.HELLO},
    MESSAGES: {"messages": _HELLO, "max_tokens": 9},
    COMPLETIONS: {"prompt": steps.HELLO},
    "/v1/embeddings": {"input": steps.HELLO},
}
CASES: Sequence[tuple[str, str, dict[str, Any]]] = (
    (
        CHAT,
        "an image",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": _IMAGE}}]}]},
    ),
    (CHAT, "a tool, of a model without tools", {"tools": [steps.CHAT_TOOL]}),
    (CHAT, "`functions`", {"functions": [{"name": "weather"}]}),
    (CHAT, "`prediction`", {"prediction": {"type": "content", "content": "Paris"}}),
    (CHAT, "`web_search_options`", {"web_search_options": {"search_context_size": "low"}}),
    (CHAT, "`audio`", {"audio": {"voice": "alloy", "format": "wav"}}),
    (CHAT, "`service_tier: flex`", {"service_tier": "flex"}),
    (CHAT, "nine choices", {"n": 9}),
    (RESPONSES, "an image", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": _IMAGE}]}]}),
    (RESPONSES, "a tool that OpenAI's servers run", {"tools": [{"type": "web_search"}]}),
    (RESPONSES, "`background`", {"background": True}),
    (RESPONSES, "`conversation`", {"conversation": "conv_1"}),
    (MESSAGES, "an image", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
    (
        MESSAGES,
        "a tool that Anthropic's servers run",
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ),
    (MESSAGES, "`thinking`", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    (MESSAGES, "`mcp_servers`", {"mcp_servers": [{"type": "url", "url": "http://127.0.0.1", "name": "a"}]}),
    (MESSAGES, "the beginning of the answer", {"messages": [*_HELLO, {"role": "assistant", "content": "It is"}]}),
    (COMPLETIONS, "token ids", {"prompt": [1, 2, 3]}),
    (COMPLETIONS, "`suffix`", {"suffix": "."}),
    ("/v1/embeddings", "embeddings, of a specialist without them", {}),
)
"""Route, what is asked for, and the fields that ask for it."""


@dataclass(frozen=True, slots=True)
class ClientRefusal:
    route: str
    asked: str
    status: int
    why: str


def ask(url: str) -> list[ClientRefusal]:
    """Send every request. Raises AssertionError if one is answered."""
    return [_ask(url, route, asked, fields) for route, asked, fields in CASES]


def _ask(url: str, route: str, asked: str, fields: dict[str, Any]) -> ClientRefusal:
    body = json.dumps({"model": steps.TALK, **_BODIES[route], **fields}).encode()
    try:
        request = Request(f"{url}{route}", body, {"content-type": "application/json"})  # noqa: S310
        with urlopen(request, timeout=PATIENCE) as response:  # noqa: S310
            raise AssertionError(f"{route} answered a request for {asked}: {response.read()[:300]!r}")
    except HTTPError as error:
        return ClientRefusal(route, asked, error.code, str(json.load(error)["error"]["message"]))


def read_refusals(text: str) -> list[ClientRefusal]:
    return [ClientRefusal(**json.loads(line)) for line in text.splitlines()]


def write_refusals(refusals: Sequence[ClientRefusal]) -> str:
    return "".join(json.dumps(asdict(refusal)) + "\n" for refusal in refusals)


def refusal_table(refusals: Sequence[ClientRefusal]) -> str:
    rows = [[f"`{each.route}`", each.asked, str(each.status), each.why] for each in refusals]
    return markdown(["route", "asked for", "status", "message"], rows, "llrl")
