"""Quality: evaluation of answers after they were given, shadows, SLOs."""
