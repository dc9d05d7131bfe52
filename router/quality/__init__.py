"""Quality: evaluation of answers after they are sent, shadow requests, SLOs."""
