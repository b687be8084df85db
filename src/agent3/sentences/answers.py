"""What words say that answer a question: a value, a no, or nothing yet.

The one rule for every door and every kind of target. Words that withdraw, refuse, put off, wonder or ask back are no
value, unless they are quoted or are among the choices of the question. Input given by its name is not judged here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agent3.model import Capability, Question
from agent3.schema.coercion import choices, find_field
from agent3.sentences.free_text import speaks_of
from agent3.sentences.lexicon import fold
from agent3.sentences.prohibitions import (
    asks_about,
    find_prohibition,
    hesitates,
    is_withdrawal,
    leaves_open,
    only_forbids,
    refuses,
)
from agent3.sentences.slots import form_of, kind_of
from agent3.sentences.tokens import LONGEST

__all__ = ["Verdict", "drops_request", "find_listed", "is_choice", "judge_answer", "judge_words"]

Verdict = Literal["refused", "open"]
"""Why words are no value: they end the matter, or they leave it open and the question is put again."""


def judge_words(capability: Capability, question: Question, said: str) -> Verdict | None:
    """Whether words that answer a question are no value of it; None for what may be one."""
    if is_choice(question, said):
        return None
    said = _plain(said)
    if drops_request(capability, said):
        return "refused"
    if question.url:
        return None
    name, definition = find_field(question.id, question.schema)
    if _NUMBERED.fullmatch(name):
        # The function or the server that asks says only in its question what it wants.
        if refuses(said) and _takes_no(question, definition):
            return None
        definition = {**definition, "description": f"{definition.get('description') or ''} {question.text}"}
        if kind_of(name, definition) == "text" and _wants_value(question.text):
            name = "name"
    return judge_answer(name, definition, said) or ("open" if _is_asked_back(question, definition, said) else None)


def _plain(said: str) -> str:
    """Words as they look: without invisible signs and odd spaces, and with the letters that others stand for."""
    if len(said) > LONGEST:
        return said
    if not said.isascii():
        said = "".join(sign for sign in unicodedata.normalize("NFKC", said) if unicodedata.category(sign) != "Cf")
        said = _MIXED.sub(lambda word: word[0].translate(_LOOK_ALIKES), said)
    return " ".join(said.split())


_LOOK_ALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422"
    "\u0423\u0425\u0406\u03bf\u03b1\u03bd\u03b9\u03c1\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7",
    "aeopcyxijsABEKMHOPCTYXIoavipABEHIKMNOPTX",
)
"""Cyrillic and Greek letters that look like Latin ones."""
_MIXED = re.compile(r"(?=\w*[A-Za-z])(?=\w*[\u0370-\u04ff])\w+")
"""A word of letters of two alphabets, which nobody writes who means one of them."""
_QUOTES = tuple("\"'`\u2018\u201c\u00ab")
_ENDING = re.compile(
    r"\W*(?:(?:oh|no|ok|please|sorry)\W+)*(?:"
    # No and cancel in other languages
    r"non(?: merci)?|nein(?: danke)?|nao|nee|nej|nie|nix|nay|naw"
    r"|\u043d\u0435\u0442|\u043e\u0442\u043c\u0435\u043d\u0430|\u4e0d(?:\u8981)?|\u53d6\u6d88|\u3044\u3044\u3048|\u30ad\u30e3\u30f3\u30bb\u30eb|\u0644\u0627"
    r"|annul(?:er|ez|la)|abbrechen|laisse[sz]? tomber|vergiss es|lascia perdere|deixa pra la|esquece|arrete[sz]?"
    r"|cancel(?:l?ed|l?ing|s)?(?: pls| plz)?|never-mind|nevermind(?: pls)?|undo|go back|start over|ctrl[- +]?c|\^c"
    r"|esc(?:ape)?|n\W?a|null|nil|undefined|tb[acd])(?:\W+(?:please|thanks|now))*\W*"
    r"|[-\u2013\u2014.\u2026\s]+"
    r"|[\s\ufe0f\u274c\u274e\u2716\u26d4\u270b\U0001f6ab\U0001f6d1\U0001f44e\U0001f645\U0001f3fb-\U0001f3ff]+"
)
"""What may well be a no: to be a value or a text it has to be quoted."""
_REGRETTING = re.compile(
    r"\W*(?:(?:oh|no|ok|please|sorry)\W+)*(?:"
    r"i (?:regret|refuse)(?: (?:it|this|that))?|(?:i )?take (?:it|that) back|(?:scrap|kill|bin|ditch) (?:it|that|this)"
    r"|let it be|oops|(?:it was )?(?:a |by )?mistake|(?:this|that|it)(?:'s| is) (?:wrong|a mistake)|second thoughts?"
    r"|over my dead body|too (?:expensive|late|much)|no (?:sir|senor|clue)|ni modo|que va|en absoluto|nones"
    r"|i(?:'m| am) done|that(?:'s| is) all|enough(?: already)?|dejal[oa] ya"
    r"|to be (?:decided|defined|announced|confirmed)|brb|i dunno|beats me|ask (?:my |the )?\w+"
    r")(?:\W+(?:please|thanks|now))*\W*"
)
"""What may be said in a text, but is hardly a value."""


def is_choice(question: Question, said: str) -> bool:
    """Whether an answer is one of the choices that its question offers, or yes or no to one that wants just that."""
    plain = said.strip().casefold()
    return any(str(choice).casefold() == plain for choice in choices(question.schema))


def find_listed(names: Sequence[str], said: str, titles: Sequence[str] = ()) -> int | None:
    """Which of the things that were listed an answer means: by its name or title, or by its place, "1", "the second".

    None where that is not clear.
    """
    plain = _bare(said)
    for known in (names, titles):
        found = [number for number, one in enumerate(known) if _bare(one) == plain]
        if plain and len(found) == 1:
            return found[0]
    if (digits := _PLACE.fullmatch(plain)) is not None:
        place = int(digits[1])
    elif plain in _LAST:
        place = len(names)
    else:
        place = _ORDINALS.get(plain, 0)
    return place - 1 if 0 < place <= len(names) else None


def _bare(said: str) -> str:
    """A name or a place without its punctuation, its article and what is said around it: "the second one, please"."""
    plain = " ".join(re.sub(r"[^\w]+|_", " ", fold(said[:_LONGEST_QUESTION])).split())
    return _AROUND.sub("", _BEFORE.sub("", plain)).strip()


_BEFORE = re.compile(
    r"^(?:(?:i (?:mean|meant|want|choose|pick)|please|ok|yes|use|take|quiero|elijo|por favor|si|vale|pues)\b ?)*"
    r"(?:(?:the|el|la|lo|las|los)\b ?)?(?:(?:number|no(?= \d)|nr|option|numero|num|opcion|tool|herramienta)\b ?)*"
)
_AROUND = re.compile(r"(?: (?:one|option|tool|opcion|herramienta|please|thanks|por favor|gracias|de la lista))+$")
_PLACE = re.compile(r"(\d{1,3})(?:st|nd|rd|th|a|o)?")
_ORDINALS = {
    word: number
    for number, several in enumerate(
        (
            "first one uno una primero primera primer",
            "second two dos segundo segunda",
            "third three tres tercero tercera tercer",
            "fourth four cuatro cuarto cuarta",
            "fifth five cinco quinto quinta",
            "sixth six seis sexto sexta",
            "seventh seven siete septimo septima",
            "eighth eight ocho octavo octava",
            "ninth nine nueve noveno novena",
            "tenth ten diez decimo decima",
        ),
        1,
    )
    for word in several.split()
}
_LAST = frozenset({"last", "ultimo", "ultima"})


def judge_answer(name: str, definition: Mapping[str, Any], said: str) -> Verdict | None:
    """The same for the answer to a question for a parameter, by the rules that hold for messages.

    A text that somebody reads may forbid or ask whatever it likes; only a bare "no" or "wait" is none.
    """
    kind = kind_of(name, definition)
    if kind == "boolean" or len(said) > LONGEST:
        return None
    if refuses(said):
        return "refused"
    short = fold(said) if len(said) <= _SHORT and not said.startswith(_QUOTES) else ""
    if hesitates(said, agrees=kind != "text") or asks_about(said) or _ENDING.fullmatch(short):
        return "open"
    if kind == "text":
        return None
    if _REGRETTING.fullmatch(short):
        return "open"
    is_other = _OTHER.search(fold(said)) is not None
    return "open" if is_other or leaves_open(said) or find_prohibition(said) is not None else None


_OTHER = re.compile(r"\w\W+(?:instead|en su lugar|en vez de es[eot]o?|en lugar de es[eot]o?)[\s.!]*$")
"""Another request in place of the one that is asked about: "draw a red square instead"."""


_NUMBERED = re.compile(r"q?\d+|answer|value|response|reply|respuesta")
"""Names of questions and fields that tell nothing of what is asked."""
_LONGEST_QUESTION = 120
_TEXTS = re.compile(
    r"question|message|text|comment|note|titl|titul|subject|asunto|quer[yi]|search|busca|say|said|tell|decir|ask|prompt"
    r"|bod[yi]|content|repl[yi]|respuesta|word|palabra|guess|phrase|frase|sentence|pregunt|mensaje|nota|descri|reason"
    r"|motivo|feedback|help|ayud|do for you|want to know|saber|want to do|hacer|topic|tema|translat|traduc|post|tweet"
    r"|quote|cita|speech|instruct|instruc|problem|issue|opinion|happen|feel|think|experienc|complain|piens|pasa|ocurr"
)
"""What may itself be a sentence or a question, in the words that ask for it."""
_WANTS_VALUE = re.compile(
    r"\W*(?:(?:please|and|ok|okay|so|por favor|y)\W+)*"
    r"(?:(?:(?:to|for|from|with|by|in|at) )?(?:which|who|whom|whose|where|when)\b|how (?:many|much|long|old|big)\b"
    r"|what(?:'s| is| are) |what \w+\W*$"
    r"|what (?:name|kind|size|type|amount|date|day|time|number|colou?r|e-?mail|address)\b"
    r"|(?:(?:a|para|con|de|en|por) )?(?:cual(?:es)?|quien(?:es)?|donde|cuando|cuant[oa]s?)\b|(?:a|en|de|con) que\b"
    r"|que (?:nombre|tipo|talla|tamano|cantidad|dia|fecha|hora|numero|color|correo|direccion)\b"
    r"|(?!(?:how|why|what|como|que|por que|is|are|do|does|did|have|any|tienes?|hay|quieres?)\b)(?:\w+ ){0,2}\w+\W*$)"
)
"""A question that asks for one thing, which can be named."""
_YES_OR_NO = re.compile(
    r"\s*(?:(?:is|are|am|was|were|do|does|did|have|has|had|will|would|could|any\w*|some\w*|need|want)\b[^.?!:]*\?"
    r"|\u00bf(?!(?:(?:a|para|con|de|en|por) )?(?:cual|quien|donde|cuando|cuant|que|como|por que)\w*\b)[^.?!:]*\?"
    r"|(?:any|anything|algun[oa]?|algo)\b[^.?!:]*)\s*"
)
_CONFIRMS = re.compile(
    r"\b(?:shall|should|may|can|do) (?:i|we)\b|\breally\b"
    r"|\b(?:do|would) you (?:really )?(?:want|like|wish) (?:me|us|to)\b"
    r"|\b(?:sure|proceed|continue|go ahead|confirm\w*|approve\w*|agree|ok|okay|correct|right|ready|done)\b"
    r"|\b(?:hago|sigo|seguimos|continu\w+|proced\w+|confirm\w*|segur[oa]|de verdad|adelante|acuerdo)\b"
    r"|\b(?:apruebas?|list[oa])\b"
)


def _takes_no(question: Question, definition: Mapping[str, Any]) -> bool:
    """Whether a question put as a text is to be answered with yes or no: "Any allergies?".

    Not one that asks whether to go on, where a no ends the matter.
    """
    if definition.get("title") or definition.get("description") or (question.schema or {}).get("type") == "object":
        return False
    asked = fold(question.text)
    return _YES_OR_NO.fullmatch(asked) is not None and _CONFIRMS.search(asked) is None


def _wants_value(asked: str) -> bool:
    said = fold(asked.replace("\u2019", "'"))
    if len(said) > 2 * _LONGEST_QUESTION or any(one.search(said) for one in (_TEXTS, _CONFIRMS)):
        return False
    return _WANTS_VALUE.match(said) is not None


def _is_asked_back(question: Question, definition: Mapping[str, Any], said: str) -> bool:
    """Whether the answer to an open question is a question itself: "what do you have?".

    Not where a text is asked for, which may be one.
    """
    if len(said) > _LONGEST_QUESTION or not said.rstrip().endswith("?"):
        return False
    if definition.get("type", "string") != "string":
        return False
    told = f"{question.id} {question.text} {definition.get('title', '')} {definition.get('description', '')}"
    return not _TEXTS.search(fold(told)) and find_prohibition(said) is not None


_SHORT = 120
_NOTHING = frozenset({"nothing", "none", "no", "nada", "ninguno", "ninguna"})
_STOPPING = re.compile(
    r"(?:please )?(?:stop|halt|abort|quit)(?: (?:it|this|that|now|please))?"
    r"|i (?:do not|don't|no longer) (?:want|need) (?:it|this|that|anything|to)(?: (?:any ?more|at all|now))?"
    r"|(?:por favor )?(?:basta|para ya|detente|alto)(?: por favor)?"
    r"|(?:ya )?no (?:lo |la |los |las )?(?:quiero|necesito)(?: (?:nada|mas|esto|eso))?(?: mas)?"
)
"""Words that end a matter in an answer. As a request of their own they may mean something else."""


def drops_request(capability: Capability, answer: str) -> bool:
    """Whether an answer to a question about a request drops it: "never mind", "don't create it"."""
    if len(answer) > LONGEST:
        return False
    form = form_of(capability)

    def drops(said: str) -> bool:
        if is_withdrawal(said) or _STOPPING.fullmatch(fold(said.replace("\u2019", "'")).strip()):
            return True
        return only_forbids(said) and speaks_of(form, said)

    clauses = [clause for clause in re.split(r"[,.;!]+", answer) if clause.strip()]
    # "nothing" alone may be an answer; "nothing, forget it" is none.
    clauses = [clause for clause in clauses if fold(clause).strip() not in _NOTHING] if len(clauses) > 1 else clauses
    return drops(answer) or (len(answer) <= _SHORT and bool(clauses) and all(map(drops, clauses)))
