"""What is told and kept of every request."""
