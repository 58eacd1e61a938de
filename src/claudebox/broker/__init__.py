"""The helper on the host that holds what must not enter the sandbox, and speaks for it to those it names."""
