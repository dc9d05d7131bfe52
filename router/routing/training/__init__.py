"""Offline training of the classifier and tuning of shadow thresholds."""
