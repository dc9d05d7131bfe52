"""Octet's router beside other routers, in front of the same simulated backends."""
