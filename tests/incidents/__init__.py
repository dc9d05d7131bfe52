"""The incidents of docs/runbook.md, caused for real: the windows must show them, and its commands must end them."""
