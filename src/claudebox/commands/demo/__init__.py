"""The demonstration: a scripted agent and an offline model."""
