"""What commands have in common, wherever they live: shared options, printing, and work on the database they name.

Rooms that bring commands of their own, such as ``protocols.nlweb.console``, use it too; it knows no command and no
gateway. ``options`` and ``output`` load nothing heavy, ``database`` loads the storage.
"""
