"""The steps of an action on a page."""
