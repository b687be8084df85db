"""Websites as agents."""
