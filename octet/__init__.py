"""Octet: many small specialist models, served as one product."""

__version__ = "0.1.0"
