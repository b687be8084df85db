"""The A2A server side."""
