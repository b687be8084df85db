"""Security that needs no identity: access rules, limits, the outbound gate, cleaning of results, canonical JSON.

Its modules are the doors: ``access``, ``limits``, ``shared_ceiling``, ``outbound``, ``sanitize`` and ``canonical``. Who
a caller is, and its secrets, are the business of ``agent3.identity``.
"""
