"""Doing on an unknown page what a sentence says; ``driving.drive`` is the door."""
