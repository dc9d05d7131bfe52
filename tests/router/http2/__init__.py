"""The gRPC client of our own."""
