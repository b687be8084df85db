"""The steps of an action on a page: what they take (``parameters``), do (``actions``) and give (``page_reading``).

``workflow`` runs them in order, ``run_context`` holds what they share, and ``snapshots`` keeps the page of one that
failed. Which element a step means is a finder's decision (``locator``); browsers, sandboxes and sessions are not known
here.
"""
