"""Turning a plan into a running sandbox, and ending it."""
