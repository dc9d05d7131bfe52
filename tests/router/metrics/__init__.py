"""What the router tells Prometheus."""
