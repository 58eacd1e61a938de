"""`--task`: a task in, a patch and a receipt out; and many of them, by GNU parallel."""
