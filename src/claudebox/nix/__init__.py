"""Nix: store and daemon, who may talk to the daemon, packages, dev shells. Imported only where there is a store."""
