"""Agent cards: how they are read and written (``cards``), signed, negotiated, and which extensions they declare.

``cards.document`` and ``cards.interfaces`` are for everybody who handles cards. Serving them over HTTP is the business
of ``door``, finding them that of ``peer``.
"""
