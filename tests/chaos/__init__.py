"""Requests while processes are killed, stopped, restarted and reconfigured."""
