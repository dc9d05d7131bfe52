"""End-to-end load on any endpoint, and the share of requests that are answered within their deadlines."""
