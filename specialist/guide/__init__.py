"""Answers that keep a form: which tokens may come next, for a grammar and what was generated."""
