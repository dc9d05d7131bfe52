"""What becomes of requests, told to whoever collects traces."""
