"""What the router counts and measures, for Prometheus."""
