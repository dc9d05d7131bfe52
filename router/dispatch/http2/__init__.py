"""A gRPC client on the event loop: the subset of HTTP/2 (RFC 9113) and HPACK (RFC 7541) that gRPC needs."""
