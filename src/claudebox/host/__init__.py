"""What this machine is like, read once before anything is decided."""
