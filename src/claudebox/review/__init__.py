"""One page to look at what a session did, and one for a batch of tasks: gathered from records, rendered as HTML."""
