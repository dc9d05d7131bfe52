"""The Python SDK. It needs only grpcio and protobuf."""
