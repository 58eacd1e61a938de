"""The broker's service for tier allow: a proxy that reaches listed domains only."""
