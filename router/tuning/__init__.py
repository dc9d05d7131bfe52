"""Offline: from what shadows have shown to the threshold below which a second opinion is worth its price."""
