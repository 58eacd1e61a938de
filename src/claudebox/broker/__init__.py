"""The helper on the host: holds what must not enter a sandbox, and decides what leaves one."""
