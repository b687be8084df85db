"""The command line: ``main`` registers the commands, and each group of them has one module.

A command is loaded when it is called; ``plugins`` adds those of other packages. ``gateway_client`` has the two ways to
a gateway; ``options``, ``output`` and ``exit_codes`` are shared.
"""
