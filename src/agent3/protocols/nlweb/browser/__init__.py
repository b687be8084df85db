"""Chromium: finding it, running it, sharing it, and keeping it inside its sandbox.

``installation`` says which browser is used, ``chromium`` runs one, ``pool`` shares it, ``sandbox`` decides what an
interface may reach, ``proxy`` is the only way out, and ``sdk`` the only import of Playwright. Other rooms import these
modules themselves, so that nothing heavy loads before a browser is needed.
"""
