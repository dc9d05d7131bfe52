"""Shared by every gRPC server: parsing, refusals, listening."""
