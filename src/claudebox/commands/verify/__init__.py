"""`--verify`: start the sandbox of a launch and try to break out of it."""
