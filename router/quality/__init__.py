"""Quality: evaluation of answers after they are sent, shadows, SLOs."""
