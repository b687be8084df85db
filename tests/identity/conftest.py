"""What is stored encrypted is tested on the same databases as storage itself."""

from __future__ import annotations

from tests.storage.conftest import lasting_url

__all__ = ["lasting_url"]
