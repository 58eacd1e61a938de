"""A model that needs no network: a scripted Messages API, and the session that `claudebox --demo` plays with it.

Nothing here is on the launch path: the model is a process of its own, and the session starts claudebox as anybody
would.
"""
