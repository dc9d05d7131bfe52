"""What every gRPC server here is told, beside its own limits."""

MOST_PENDING = 8192
"""Calls that have come and that nobody has looked at yet. gRPC drops what is beyond, as CANCELLED and without a word;
left to itself it drops some by chance from 1,000 on."""
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # A peer that is gone without a word is noticed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # Who has connected and says nothing is let go.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 20_000),
    # Headers that are too long are refused at once, and not after up to a second in which their stream is held.
    ("grpc.http.tarpit", 0),
    ("grpc.server.max_pending_requests", MOST_PENDING),
    ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
)
