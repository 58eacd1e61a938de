"""The broker's service for the model's API: holds the credential."""
