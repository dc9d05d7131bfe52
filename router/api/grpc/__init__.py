"""The router's gRPC services."""
