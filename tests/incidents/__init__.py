"""Causes the incidents of docs/runbook.md: the overview must show them, and the runbook's commands must end them."""
