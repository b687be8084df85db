"""A visit to a website: whose it is, how it logs in, how fast it may go, and what it leaves.

``visits`` is the whole of it, ``page_session`` one page without the rest, and ``local_profile`` what this machine knows
for visits without a gateway. Other rooms also use ``login``, ``secret_grants``, ``stored_sessions`` and
``throttle.site_of``; ``robots`` serves the pace. It knows no protocol.
"""
