"""Tests of the router's own gRPC client over HTTP/2."""
