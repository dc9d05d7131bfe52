"""Octet's router compared with other routers, in front of the same simulated backends."""
