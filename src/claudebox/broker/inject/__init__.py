"""The broker's service for `[[secrets]]`: puts values into requests on their way."""
