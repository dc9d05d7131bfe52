"""Rehearsals of the incidents in docs/runbook.md: each is caused, the overview must show it, and the runbook's commands
must end it."""
