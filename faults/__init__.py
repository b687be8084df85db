"""Faults done to the real thing, on purpose: killed processes, broken disks, and what must be true afterwards.

    python -m faults --list
    python -m faults NAME|all [--seed N] [--json]

One module here is one fault. To add one, write a module with a function under ``@fault`` (faults/registry.py); it is
found by itself.
"""
