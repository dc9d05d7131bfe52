"""Converts one YAML file to frozen dataclasses."""
