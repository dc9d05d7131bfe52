"""The Python SDK and the commands that use it."""
