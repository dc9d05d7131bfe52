"""Tests of requests while processes are killed, stopped, restarted and reconfigured."""
