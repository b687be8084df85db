"""The programs of the matrix, one for each SDK. Each runs where its SDK is installed, and imports nothing of ours.

    PROGRAM serve PORT GRPC_PORT             an agent, until it is killed
    PROGRAM ask CARD BINDING VERSION         one message and one stream to the agent of a card's address, by one of its
                                             interfaces; prints {"unary": TEXT, "stream": [PIECE, …]}

All agents do the same: they echo, and tell a message that begins with "story" in three pieces.
"""
