"""Repositories that an agent made or changed."""
