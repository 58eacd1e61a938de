"""claudebox: coding agents with every permission, in a sandbox without your secrets."""

__version__ = "0.3.0"
SUMMARY = "coding agents with every permission, in a sandbox without your secrets"
