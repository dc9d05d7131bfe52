"""Calls of tools: how a model writes them, how they are read, and how it is made to write no others."""
