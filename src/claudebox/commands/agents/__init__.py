"""Many agents on one machine: sessions without a terminal, and copies of a project for each."""
