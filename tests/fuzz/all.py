"""All parsers."""

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import config, doors, hf, http, http2, models, requests, structure, text, wire

PARSERS: tuple[Parser, ...] = (
    *requests.PARSERS,
    *http.PARSERS,
    *http2.PARSERS,
    *config.PARSERS,
    *models.PARSERS,
    *hf.PARSERS,
    *doors.PARSERS,
    *structure.PARSERS,
    *wire.PARSERS,
    *text.PARSERS,
)
