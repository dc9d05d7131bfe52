"""Log lines as text or JSON, with the ids of their request."""

import argparse
import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, get_args

from octet.telemetry.requests import current_request

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_MOST_LINE_BYTES = 8000  # `octet serve` splits longer lines, which would break the JSON
_MOST_CHARACTERS, _FALLBACK_CHARACTERS = 3500, 240
"""Maximum characters of a message and of a traceback; the second limit applies if the line is still too long."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    format: LogFormat = "text"
    level: LogLevel = "info"

    def arguments(self) -> list[str]:
        return ["--log-format", self.format, "--log-level", self.level]


def add_log_options(parser: Any) -> None:
    usual, about = LogSettings(), "plain text, or one JSON object per line (default: %(default)s)"
    parser.add_argument("--log-format", choices=get_args(LogFormat), default=usual.format, help=about)
    parser.add_argument("--log-level", choices=get_args(LogLevel), default=usual.level, help="default: %(default)s")


def log_settings(arguments: argparse.Namespace) -> LogSettings:
    return LogSettings(arguments.log_format, arguments.log_level)


def set_up_logging(settings: LogSettings, text_format: str, stream: TextIO | None = None) -> None:
    """Configure logging for the whole process. `text_format` applies to plain text."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines(text_format))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """Escapes control characters and indents tracebacks, so that a caller's text cannot look like another log line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        request_id, trace_id = _ids(record)
        about = f" [request {request_id}]" if request_id else ""
        about += f" [trace {trace_id}]" if trace_id else ""
        return _escape(super().formatMessage(record)) + _escape(about)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"  {_escape(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record, _MOST_CHARACTERS)
        return line if len(line) <= _MOST_LINE_BYTES else self._line(record, _FALLBACK_CHARACTERS)

    def _line(self, record: logging.LogRecord, most: int) -> str:
        request_id, trace_id = _ids(record)
        fields = {
            "time": format_rfc3339(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _clip(record.getMessage(), most),
            "request_id": request_id,
            "trace_id": trace_id,
            "exception": _clip(self.formatException(record.exc_info), most) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in fields.items() if value or name == "message"})


def format_rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ids(record: logging.LogRecord) -> tuple[str, str]:
    """Return request id and trace id: the record's own, else those of the current request."""
    current = current_request()
    request_id = str(getattr(record, "request_id", "") or current.request_id)
    return _clip(request_id, 128), str(getattr(record, "trace_id", "") or current.trace_id)


def _escape(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _clip(text: str, most: int) -> str:
    """Cut out the middle of a long text, because the last line of a traceback is the most useful."""
    return text if len(text) <= most else f"{text[: most // 3]} ... {text[-(most - most // 3) :]}"
