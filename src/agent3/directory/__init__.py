"""What can be called, and what callers think of it."""

from agent3.directory.directory import Accept, Directory, Hit, Hits
from agent3.directory.reputation import Rating, Reputation

__all__ = ["Accept", "Directory", "Hit", "Hits", "Rating", "Reputation"]
