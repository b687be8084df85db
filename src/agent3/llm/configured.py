"""The language model that the settings name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent3.errors import SetupError
from agent3.identity.secrets import Vault
from agent3.settings import Llm

if TYPE_CHECKING:
    from agent3.llm import Anthropic, OpenAICompatible

__all__ = ["load_model"]


def load_model(settings: Llm, vault: Vault) -> Anthropic | OpenAICompatible | None:
    """The model of the settings, or None. It is loaded only where there is one.

    SetupError for a key that is no reference, or names a variable that is not set: nobody should learn that from the
    first sentence that needs the model.
    """
    if not settings.model:
        return None
    scheme, _, name = settings.key.partition(":")
    if settings.key and (scheme not in ("env", "vault", "kept") or not name):
        raise SetupError(
            "settings: llm.key must be env:NAME, with the name of an environment variable, or vault:NAME, not the key "
            "itself."
        )
    if scheme == "env" and not os.environ.get(name):
        raise SetupError(f"settings: llm.key is taken from the environment variable {name}, which is not set.")
    import agent3.llm as vendors

    key, seconds = settings.key or None, settings.timeout
    if settings.api == "anthropic":
        address = settings.base_url or "https://api.anthropic.com"
        return vendors.Anthropic(settings.model, key, base_url=address, timeout=seconds, retries=1, vault=vault)
    address = settings.base_url or "https://api.openai.com/v1"
    return vendors.OpenAICompatible(address, settings.model, key, timeout=seconds, retries=1, vault=vault)
