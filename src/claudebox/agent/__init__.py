"""Everything special about the program inside."""
