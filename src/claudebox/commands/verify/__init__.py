"""`--verify`: start the sandbox and try to break out of it."""
