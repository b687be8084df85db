"""What commands share: options, printing, and work on a database.

Packages with commands of their own, such as ``protocols.nlweb.console``, use it too. It knows no command and no
gateway.
``options`` and ``output`` load nothing heavy; ``database_work`` loads the storage.
"""
