"""Nix: where store and daemon are, who may talk to the daemon, packages, dev shells. Imported only where there is one."""
