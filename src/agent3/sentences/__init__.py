"""Sentences for any capability: what input they mean, what is still to be asked, or that nothing is to be done.

One reader for every kind of target. It reads words and schemas, and knows no protocol, no call and no model.
"""

from __future__ import annotations

from agent3.sentences.answers import judge_answer, judge_words
from agent3.sentences.free_text import (
    FREE_TEXT,
    acts,
    find_acting_parameter,
    find_dictated_refusal,
    find_refusal,
    free_text,
    talks,
    understands,
)
from agent3.sentences.prohibitions import find_prohibition
from agent3.sentences.reader import Ask, Forbidden, Reading, Understood, read

__all__ = [
    "FREE_TEXT",
    "Ask",
    "Forbidden",
    "Reading",
    "Understood",
    "acts",
    "find_acting_parameter",
    "find_dictated_refusal",
    "find_prohibition",
    "find_refusal",
    "free_text",
    "judge_answer",
    "judge_words",
    "read",
    "talks",
    "understands",
]
