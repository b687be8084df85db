"""The commands of this protocol: ``agent3 web``.

The command line registers them by name and loads them when they are called. They share options and printing with other
commands through ``agent3.terminal``, and know nothing of ``agent3.cli``.
"""
