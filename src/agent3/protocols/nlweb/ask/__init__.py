"""The NLWeb protocol: ``wire`` is its client, ``sites`` makes agents of websites that speak it, ``door`` serves it.

It knows no browser.
"""
