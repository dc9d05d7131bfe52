"""LoRA adapters: read and checked from disk, kept by content, lent to a device."""
