"""Offline: from labelled prompts to the classifier's file, and what it is worth on kinds of text it never saw."""
