"""HTTP as the broker speaks it: messages, streams, forwarding."""
