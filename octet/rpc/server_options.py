"""What every gRPC server here is told, beside its own limits."""

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # A peer that is gone without a word is noticed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)
