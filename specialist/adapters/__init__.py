"""LoRA adapters: read from disk and checked, stored by content, copied to a device."""
