"""Every parser there is."""

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import config, http, models, requests, structure, text, wire

PARSERS: tuple[Parser, ...] = (
    *requests.PARSERS,
    *http.PARSERS,
    *config.PARSERS,
    *models.PARSERS,
    *structure.PARSERS,
    *wire.PARSERS,
    *text.PARSERS,
)
