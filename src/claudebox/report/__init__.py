"""Phase 5, what the session left behind: reads and prints."""
