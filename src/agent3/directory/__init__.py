"""What can be called, and what callers think of it."""

from agent3.directory.directory import Directory, Hit
from agent3.directory.reputation import Rating, Reputation

__all__ = ["Directory", "Hit", "Rating", "Reputation"]
