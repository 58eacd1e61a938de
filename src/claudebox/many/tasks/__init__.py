"""A task in; a patch, transcript, log and receipt out."""
