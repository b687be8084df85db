"""What every test stands on."""

from __future__ import annotations

import signal

from agent3.storage import disk_space as room

# A suite that a script starts in the background inherits an ignored SIGINT, and so would every process it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of databases are left behind in folders that pytest keeps; with eight megabytes kept back each, that adds up.
room.RESERVE = 128 * 1024
