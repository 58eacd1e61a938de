"""Data only: paths, names, ranges of addresses, shapes of secrets. Imports nothing."""
