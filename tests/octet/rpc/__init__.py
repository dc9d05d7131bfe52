"""What every server does alike."""
