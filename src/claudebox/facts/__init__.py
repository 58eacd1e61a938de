"""Phase 2, what the machine is like: reads, and runs or writes nothing of the user's."""
