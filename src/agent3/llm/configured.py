"""The language model that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.identity.secrets import Vault
from agent3.settings import Llm

if TYPE_CHECKING:
    from agent3.llm import Anthropic, OpenAICompatible

__all__ = ["load_model"]


def load_model(settings: Llm, vault: Vault) -> Anthropic | OpenAICompatible | None:
    """The model of the settings, or None. It is loaded only where there is one."""
    if not settings.model:
        return None
    import agent3.llm as vendors

    key, seconds = settings.key or None, settings.timeout
    if settings.api == "anthropic":
        address = settings.base_url or "https://api.anthropic.com"
        return vendors.Anthropic(settings.model, key, base_url=address, timeout=seconds, retries=1, vault=vault)
    address = settings.base_url or "https://api.openai.com/v1"
    return vendors.OpenAICompatible(address, settings.model, key, timeout=seconds, retries=1, vault=vault)
