"""Tests of tools: how models write tool calls, and how these are parsed."""
