"""The router as a process: octet.v1.Inference, health, reflection, hot reload."""
