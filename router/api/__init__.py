"""The public interfaces of the router: gRPC, HTTP, operator, dashboard and API keys."""
