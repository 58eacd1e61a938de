"""Undo, and the one answer to what a session changed: manifests of its start and its end, compared and put back."""
