"""The document, whole."""

from collections.abc import Mapping
from typing import Any

from router.http.openapi import answers, anthropic, openai, overview, own, router
from router.reception.limits import Limits

_ABOUT = "One endpoint over many specialist models: OpenAI's and Anthropic's dialects, and what only Octet has."


def document(limits: Limits, version: str) -> Mapping[str, Any]:
    """By the limits that requests are held to."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octet", "version": version, "description": _ABOUT},
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
        "paths": {**openai.paths(limits), **anthropic.PATHS, **own.paths(), **router.PATHS, **overview.PATHS},
        "components": {
            "schemas": {
                **answers.SCHEMAS,
                **openai.schemas(limits),
                **anthropic.schemas(limits),
                **own.schemas(limits),
                **router.SCHEMAS,
                **overview.SCHEMAS,
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
