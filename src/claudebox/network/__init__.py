"""The sandbox's way to the internet: rules in the kernel, the program that carries packets, relays for single ports."""
