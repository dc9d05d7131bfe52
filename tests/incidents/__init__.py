"""The incidents of docs/runbook.md are caused: the overview must show them, and the runbook's commands must end
them."""
