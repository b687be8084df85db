"""The demo: a few small agents, so that a first call works before anything is registered."""

from __future__ import annotations

import ast
import asyncio
import math
import operator
import re
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, cast

from agent3.errors import ValidationError
from agent3.model import Price
from agent3.protocols.functions import Context, LocalAgent, SyncContext
from agent3.server.demo_images import images

__all__ = ["agents"]

Size = Literal["small", "medium", "large"]

echo = LocalAgent("Echo", agent_id="echo", description="Repeats what it is told. Good for a first try.", tags=("demo",))
pizza = LocalAgent(
    "Pizza Palace",
    agent_id="pizza",
    description="Takes orders for pizza delivery and asks for missing details.",
    tags=("demo", "food", "delivery"),
)
calculator = LocalAgent(
    "Calculator", agent_id="calculator", description="Works out arithmetic exactly.", tags=("demo", "mathematics")
)
story = LocalAgent(
    "Story Teller", agent_id="story", description="Tells a short story, word by word, as a stream.", tags=("demo",)
)


@echo.capability(read_only=True, phrases=("say hello back",))
async def say(message: str) -> str:
    """Say the message back."""
    return message


@pizza.capability(replay=True, price=Price(call=0.001), phrases=("I want to order a large pepperoni pizza",))
async def order(ctx: Context, message: str) -> dict[str, Any]:
    """Order a pizza in plain words.

    Args:
        message: What you want, such as "a large pepperoni pizza". What is missing is asked for.
    """
    if len(message) > _LONGEST_ORDER:
        raise ValidationError(f"Order in at most {_LONGEST_ORDER} characters")
    wanted = _LEFT_OUT.sub(" ", message.lower())
    if _SEVERAL.search(wanted):
        raise ValidationError(
            "Only one pizza can be ordered at a time. Order each separately, such as 'a large pepperoni pizza'"
        )
    if _LATER.search(wanted):
        raise ValidationError(
            "A pizza can only be ordered for now; it arrives in 35 minutes. Leave out the day and the time"
        )
    sizes = {size for word, size in _SIZES.items() if re.search(rf"\b{word}\b", wanted)}
    toppings = {word for word in _TOPPINGS if re.search(rf"\b{word}s?\b", wanted)}
    # Of two that are named none is taken.
    size = sizes.pop() if len(sizes) == 1 else await ctx.ask("Which size: small, medium or large?", Size)
    topping = toppings.pop() if len(toppings) == 1 else await ctx.ask("Which topping?", str)
    ctx.status("Placing the order")
    number = await ctx.once("order", lambda: f"P-{secrets.token_hex(3).upper()}")
    return {"orderId": number, "status": "confirmed", "size": size, "topping": topping, "minutes": 35}


_LONGEST_ORDER = 1_000
_TOPPINGS = frozenset({"pepperoni", "margherita", "mushroom", "ham", "cheese", "olive", "onion", "salami", "tuna"})
_SIZES: dict[str, Size] = {
    "small": "small", "pequeña": "small", "medium": "medium", "mediana": "medium", "large": "large", "grande": "large",
}  # fmt: skip
_LEFT_OUT = re.compile(
    r"\b(?:without|no|not|hold the|sin|nada de)\s+(?:an?\s+|any\s+|the\s+)?\w+(?:\s+(?:or|and|ni|y|o)\s+\w+)*"
)
_LATER = re.compile(r"\b(?:tomorrow|tonight|later|mañana|esta noche|luego|(?:at|for|a las|para las) \d+)\b")
_SEVERAL = re.compile(
    r"\b(?:two|three|four|five|six|several|dos|tres|cuatro|cinco|seis|varias|[2-9]|\d\d+)\b(?:\s+\w+){0,3}?\s+pizzas?\b|\bpizzas\b"
)


@pizza.capability(read_only=True)
def menu() -> list[dict[str, Any]]:
    """Show the menu with prices in dollars."""
    return [{"topping": topping, "small": 8, "medium": 11, "large": 14} for topping in sorted(_TOPPINGS)]


@calculator.capability(read_only=True, phrases=("what is 2 + 2 * 3",))
def calculate(expression: str) -> float:
    """Work out an arithmetic expression with + - * / // % ** and parentheses.

    Args:
        expression: Such as "2 * (3 + 4)".
    """
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        if not math.isfinite(value):
            raise OverflowError("the result is too large")
    except SyntaxError:
        raise ValidationError(f"{expression[:100]!r} is not arithmetic. Try something like 2 * (3 + 4)") from None
    except (ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError) as error:
        raise ValidationError(
            f"{expression[:100]!r} cannot be evaluated: {error}. Try something like 2 * (3 + 4)"
        ) from None
    whole: object = value
    return value if isinstance(whole, int) else float(f"{value:.15g}")  # 0.1 + 0.2 is 0.3


def _power(left: float, right: float) -> float:
    """Bounded: a tower of powers would never end."""
    if abs(right) > 64 or abs(left) > 1e9:
        raise OverflowError("the power is too large")
    if left < 0 and right != int(right):
        raise ValueError("the root of a negative number is not real")
    return cast("float", left**right)


_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _value(node: ast.AST) -> float:
    """Walks the syntax tree; nothing but numbers and operators is ever evaluated."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp):
        return _operator(node.op)(_value(node.operand))
    if isinstance(node, ast.BinOp):
        return _operator(node.op)(_value(node.left), _value(node.right))
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def _operator(kind: ast.AST) -> Callable[..., float]:
    if type(kind) not in _OPERATORS:
        raise ValueError(f"{type(kind).__name__} is not supported")
    return _OPERATORS[type(kind)]


@story.capability
async def tell(topic: str) -> AsyncIterator[str]:
    """Tell a short story about something.

    Args:
        topic: What it is about.
    """
    # What a sentence is about comes without its article: "a story about a robot".
    bare = re.fullmatch(r"[a-z]+(?<!s)", topic) is not None
    about = f"{'an' if topic[0] in 'aeiou' else 'a'} {topic}" if bare else topic
    for word in f"Once upon a time there was {about}, and it found everything it needed with one call.".split(" "):
        yield word + " "
        await asyncio.sleep(0.01)


@story.capability(replay=True)
def guess(ctx: SyncContext) -> str:
    """Play a short guessing game: it asks until you are right."""
    number = ctx.once("number", lambda: secrets.randbelow(3) + 1)
    for turn in range(1, 4):
        if ctx.ask(f"Guess {turn}: which number from 1 to 3 am I thinking of?", int) == number:
            return f"Right, it was {number}. You needed {turn}."
    return f"It was {number}. Better luck next time."


def agents() -> tuple[LocalAgent, ...]:
    """All demo agents."""
    return echo, pizza, calculator, story, images
