"""Chromium, its pool, its proxy and its sandbox."""
