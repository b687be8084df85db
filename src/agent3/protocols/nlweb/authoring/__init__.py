"""Interfaces of websites: learned, recorded, checked, kept as files."""
