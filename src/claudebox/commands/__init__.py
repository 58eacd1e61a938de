"""What `claudebox` can do besides starting the client; none of it is on the launch path."""
