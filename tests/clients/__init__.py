"""The clients of docs/http.md against a running Octet, each in an environment of its own."""
