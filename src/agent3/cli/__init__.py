"""The command line: ``main`` is its door, and there is one module for each group of commands.

A command is loaded when it is called. ``gateway_client`` has the two ways to a gateway; ``options``, ``output`` and
``exit_codes`` are shared.
"""
