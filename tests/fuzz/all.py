"""Every parser there is."""

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import config, doors, hf, http, models, requests, structure, text, wire

PARSERS: tuple[Parser, ...] = (
    *requests.PARSERS,
    *http.PARSERS,
    *config.PARSERS,
    *models.PARSERS,
    *hf.PARSERS,
    *doors.PARSERS,
    *structure.PARSERS,
    *wire.PARSERS,
    *text.PARSERS,
)
