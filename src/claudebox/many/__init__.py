"""Several agents at once: copies, sessions, detaching, tasks."""
