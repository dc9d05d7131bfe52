"""What commands that serve are told of traces."""

from typing import Any


def add_trace_option(parser: Any, configured: str = "") -> None:
    """To a parser or a group of it. `configured` is what else may say it."""
    usual = " or ".join(filter(None, (configured, "OTEL_EXPORTER_OTLP_ENDPOINT")))
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help=f"send traces there, by OTLP over gRPC: http://HOST:4317, or https (default: {usual}, or nowhere)",
    )
