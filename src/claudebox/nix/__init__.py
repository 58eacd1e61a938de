"""Tools from Nix inside, and a daemon that cannot be abused."""
