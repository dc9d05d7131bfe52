"""The operator's commands: see and change what stands between router and replicas."""
