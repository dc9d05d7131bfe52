"""What happens after an answer: it is read again, judged, compared with its shadow's. Nobody waits for any of it."""
