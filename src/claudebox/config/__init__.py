"""Phase 1, what was asked for: flags and files -> settings -> policy."""
