"""What was asked: flags, files and profiles, merged into one policy."""
