"""What processes log: text for people, or JSON for whoever collects it; each line with the request it is about."""

import argparse
import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, get_args

from octet.telemetry.handling import handled_now

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
_LINE = 8000
"""Bytes: `octet serve` takes longer ones apart, and then they are no JSON."""
_MOST, _LEAST = 3500, 240
"""Characters of a message, and of a traceback; where nearly each of them takes twelve bytes, the latter."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    format: Format = "text"
    level: Level = "info"

    def arguments(self) -> list[str]:
        """For another command of ours."""
        return ["--log-format", self.format, "--log-level", self.level]


def add_log_options(parser: Any) -> None:
    """To a parser or a group of it."""
    usual = LogSettings()
    parser.add_argument(
        "--log-format",
        choices=get_args(Format),
        default=usual.format,
        help="text for people, or a JSON object a line (default: %(default)s)",
    )
    parser.add_argument("--log-level", choices=get_args(Level), default=usual.level, help="default: %(default)s")


def log_settings(arguments: argparse.Namespace) -> LogSettings:
    return LogSettings(arguments.log_format, arguments.log_level)


def set_up(settings: LogSettings, text_format: str, stream: TextIO | None = None) -> None:
    """For the whole process, instead of what was. `text_format` is for people."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines(text_format))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """Nothing that a caller wrote begins a line, or moves a cursor: a traceback is set in."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        request_id, trace_id = _ids(record)
        about = f" [request {request_id}]" if request_id else ""
        about += f" [trace {trace_id}]" if trace_id else ""
        return _escaped(super().formatMessage(record)) + _escaped(about)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"  {_escaped(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """ASCII, and one line whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record, _MOST)
        return line if len(line) <= _LINE else self._line(record, _LEAST)

    def _line(self, record: logging.LogRecord, most: int) -> str:
        request_id, trace_id = _ids(record)
        told = {
            "time": rfc3339(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _clipped(record.getMessage(), most),
            "request_id": request_id,
            "trace_id": trace_id,
            "exception": _clipped(self.formatException(record.exc_info), most) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in told.items() if value or name == "message"})


def rfc3339(seconds: float) -> str:
    """UTC, of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ids(record: logging.LogRecord) -> tuple[str, str]:
    """What the line itself says, else whose request is being handled."""
    handled = handled_now()
    request_id = str(getattr(record, "request_id", "") or handled.request_id)
    return _clipped(request_id, 128), str(getattr(record, "trace_id", "") or handled.trace_id)


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _clipped(text: str, most: int) -> str:
    """The ends of it: a traceback's last line says most."""
    return text if len(text) <= most else f"{text[: most // 3]} ... {text[-(most - most // 3) :]}"
