"""Whether an answer is JSON, and as a schema wants it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from router.verify.child import Child
from router.verify.fences import blocks_in
from router.verify.schema import check_schema
from router.verify.verdict import Verdict, too_long
from router.verify.workshop import Workshop

_JSON = frozenset({"json", "jsonc", "json5", "application"})
_MOST_SCHEMA = 1 << 20


class JsonVerifier:
    def __init__(
        self,
        name: str,
        workshop: Workshop,
        schema: Any,
        *,
        cpu_seconds: float,
        clock_seconds: float,
        answer_bytes: int,
    ) -> None:
        self.name = name
        self._child = Child(name, "router.verify.check_json", workshop, cpu_seconds, clock_seconds)
        self._schema = schema
        self._answer_bytes = answer_bytes

    async def verify(self, question: str, answer: str) -> Verdict:
        if why := too_long(answer, self._answer_bytes):
            return Verdict("skipped", why)
        texts = await asyncio.to_thread(json_in, answer)
        return await self._child.verdict({"texts": texts, "schema": self._schema})

    async def close(self) -> None:
        """Nothing runs between two answers."""


def json_in(text: str) -> list[str]:
    """Fenced JSON, each block by itself, or else the whole text: a specialist that owes JSON owes nothing else."""
    stripped = text.strip().removeprefix("\ufeff")
    if stripped[:1] in ("{", "["):
        return [stripped]
    blocks = blocks_in(text)
    named = [block.code for block in blocks if block.language in _JSON]
    unnamed = [block.code for block in blocks if not block.language]
    return [code.strip() for code in named or unnamed if code.strip()] or [stripped]


def read_schema(path: Path) -> Any:
    """Raises ValueError that says what is wrong with it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the schema {path} cannot be read: {error.strerror or error}") from error
    if len(raw) > _MOST_SCHEMA:
        raise ValueError(f"the schema {path} is longer than {_MOST_SCHEMA} bytes")
    try:
        schema = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema {path} is no JSON: {error}") from error
    check_schema(schema, str(path))
    return schema
