"""The steps around every call, one file each."""
