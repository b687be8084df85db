"""What every test stands on."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from agent3.directory import meaning
from agent3.storage import disk_space

# How long an example takes says something about the machine, not about the code.
settings.register_profile("agent3", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agent3")

# A suite that a script starts in the background inherits an ignored SIGINT, and so would every process it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Meaning is tested by itself; a gateway of any other test would only load the encoder's weights.
meaning.load_encoder = lambda: None  # type: ignore[assignment]

# Hundreds of databases are left behind in folders that pytest keeps; with eight megabytes kept back each, that adds up.
disk_space.RESERVE = 128 * 1024
