"""What everything rests on: output, errors, files, processes, trees."""
