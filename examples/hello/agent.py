"""A first agent: three functions, one of which asks a question back."""

from __future__ import annotations

from typing import Literal

from agent3 import Context, LocalAgent

agent = LocalAgent("Hello", description="Greets people in several languages.", tags=("greeting", "example"))

Language = Literal["english", "spanish", "german"]
WORDS: dict[Language, str] = {"english": "Hello", "spanish": "Hola", "german": "Hallo"}


@agent.capability(read_only=True)
def greet(name: str, language: Language = "english") -> str:
    """Greet somebody.

    Args:
        name: Who is greeted.
        language: In which language.
    """
    return f"{WORDS[language]}, {name}!"


@agent.capability(read_only=True)
def languages() -> list[str]:
    """List the languages that are spoken here."""
    return sorted(WORDS)


@agent.capability(replay=True)
async def introduce(ctx: Context) -> str:
    """Introduce yourself: it asks for your name and your language."""
    name = await ctx.ask("What is your name?")
    language = await ctx.ask("Which language do you speak?", Language)
    ctx.status("Looking for the right words")
    return f"{WORDS[language]}, {name}! Nice to meet you."
