"""A visit to a website."""
