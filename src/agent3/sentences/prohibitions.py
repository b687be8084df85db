"""Sentences that ask for nothing to be done: they forbid, set a condition, take something back, wonder, or report.

It reads words alone and leans to one side: to take a request for a prohibition costs a question, the other way round
costs an action that nobody wanted. What is quoted, or is plainly the text of a message, says nothing of the request.
"""

from __future__ import annotations

import re
from typing import Literal

from agent3.sentences.lexicon import fold_letters

__all__ = ["Why", "blank_courtesies", "find_prohibition"]

_LONGEST_END = 2_000
"""Characters that are read at each end of a long text: some of the patterns look ahead from every letter."""
Why = Literal["forbids", "conditional", "withdrawn", "hypothetical", "report"]

_QUOTED = re.compile(
    r"```.*?```|`[^`]*`|“[^”]*”|«[^»]*»|\"[^\"]*\"|(?<!\w)['\u2018](?:[^'\u2019]"
    r"|(?<=\w)['\u2019](?=\w))+['\u2019](?!\w)",
    re.S,
)
_COURTEOUS = re.compile(
    r"\b(?:do not|don'?t) (?:forget|hesitate|fail) (?:to|about)\b|\bno (?:te )?olvid(?:es|e) (?:de )?"
    r"|\bwhy (?:do not|don'?t) you\b"
    r"|\bif (?:you )?(?:can|could|possible|please|you please)\b|\bif (?:you|it)(?: do not| don'?t|'s)? (?:mind|ok)\b"
    r"|\bsi (?:puedes|es posible|eres tan amable|no te importa|haces el favor)\b|,? (?:¿no\?|no\?|right\?|verdad\?)$"
)
_HARMLESS = re.compile(
    rf"{_COURTEOUS.pattern}|\bpor que no\b(?= \w+)|\bno (?:more|later|fewer|less|older|earlier) than\b|\bno (?:mas"
    rf"|menos) de\b"
    r"|\bwith no\b|\bno\. ?\d|\bnot only\b|\bsin falta\b"
)
# The text of a message begins here; what it says is not said to us.
_CONTENT = re.compile(
    r"\b(?:saying|that says|which says|diciendo|que diga|que dice|with (?:the )?(?:text|message|body|content)"
    r"|con (?:el )?(?:texto|mensaje|cuerpo|contenido))\b|:\s"
)
_SAY = re.compile(
    r"^\W*(?:(?:please|por favor|can you|could you|puedes|podrias)\W+)*(?:tell|post|write|send|announce|notify|say"
    r"|di|dile|diles|avisa|avisales"
    r"|escribe|publica|manda|envia|anuncia)\b.*?\b(?:that|que)\b"
)
_WITHDRAWN = re.compile(
    r"\bnever ?mind\b|\bforget (?:it|that|about|what|the)\b|\bscratch that\b|\b(?:cancel|undo|revert|stop) (?:that"
    r"|this|it all|everything)\b"
    r"|\bon second thoughts?\b|\bchanged? my mind\b|\bactually,? (?:no|don'?t|do not)\b|\bjust kidding\b"
    r"|\bhold off\b|\bleave it\b|\bdisregard\b"
    r"|\b(?:no )?wait\b,?|\bhold on\b|\bmejor no\b|\bolvid[ae](?:lo|la|te)\b|\bdejal[oa]\b|\bcancela (?:eso"
    r"|lo anterior)\b|\bdeshaz(?:lo)?\b"
    r"|\bya no\b|\bhe cambiado de (?:idea|opinion)\b|\bera broma\b|\bno (?:lo|la) hagas\b|\besper[ae]\b|\baguanta\b"
    r"|\btoo late\b"
)
_FORBIDS = re.compile(
    r"\b(?:do not|don'?t|dont|does not|doesn'?t|never|not|cannot|can'?t|won'?t|wouldn'?t|shouldn'?t|mustn'?t"
    r"|needn'?t|isn'?t|aren'?t|wasn'?t"
    r"|avoid|refrain|prevent|forbid(?:den)?|prohibit(?:ed)?|nobody|no one|neither|nor|instead of|rather than)\b"
    r"|n['\u2019]t\b"
    r"|\b(?:no|nunca|jamas|tampoco|ni|evita|evitar|prohibido|prohibo|en vez de|en lugar de|deja(?:d|r)? de|nadie"
    r"|abstente)\b"
    r"|^\W*(?:(?:please|por favor|now|just)\W+)*(?:stop|quit|cease) \w+ing\b|^\W*para de \w+r\b"
)
_CONDITIONAL = re.compile(
    r"\b(?:if|unless|in case|provided that|providing|assuming|suppose|supposing|as long as|in the event|otherwise"
    r"|depending on|only when|whenever)\b"
    r"|\b(?:after|before|until|till|once|as soon as|when)\s+(?:i|you|we|he|she|they|it|the|my|our|everyone"
    r"|everybody|someone|somebody|all|anyone)\b"
    r"|\b(?:a menos que|a no ser que|salvo que|salvo si|excepto si|en caso de|siempre que|siempre y cuando"
    r"|con tal de|en cuanto|hasta que"
    r"|por si|cuando|tan pronto como|mientras|antes de (?:que|\w+[aei]r)|despues de (?:que|\w+[aei]r)|una vez que"
    r"|segun si|depende)\b"
)
_INDIRECT = re.compile(
    r"\b(?:tell me|check|see|know|find out|ask|look|wonder(?:ing|ed)?|dime|saber|comprueba|mira|ver|averigua"
    r"|consulta|digas|verifica)\s+(?:me\s+)?(?:if|si)\b"
)
_ASKED = re.compile(
    r"^\W*if it(?:'s| is) .{1,60}, what\b"
    r"|^\W*(?:what|which|how|que|cual|cuanto) (?:time|hour|hora|much|es|is|are)\b.*\b(?:when"
    r"|cuando)\b"
)
_SI = re.compile(r"(?<!\w)si(?!\w)", re.IGNORECASE)
_HYPOTHETICAL = re.compile(
    r"\bwhat (?:would|will|happens|if|might|could)\b|\bwould (?:it|that|this|anything) \w+|\bshould (?:i|we|it)\b"
    r"|\bimagine\b|\bhypothetical"
    r"|\bwhat(?:'s| is) the (?:risk|effect|danger)|\bque (?:pasaria|pasa|ocurriria|ocurre|sucederia|sucede) (?:si"
    r"|con|al)\b|\by si\b"
    r"|\b(?:deberia|debo|convendria|seria buena idea|conviene|hipotetic)\w*\b|\bimagina\b|\bsupon(?:gamos|iendo)?\b"
    r"|\bis it (?:safe|ok|okay|possible|wise)\b"
    r"|\bes (?:posible|seguro|buena idea|recomendable)\b"
)
_REPORT = re.compile(
    r"^\W*(?:i|we|you|he|she|they|it|someone|somebody|who|my \w+|the \w+)(?:'ve|'s|'d)? (?:already |just |never "
    r"|have |has |had |was |were |did )*"
    r"(?:\w{2,}ed|sent|wrote|made|put|ran|built|bought|paid|told|asked|said|did|was|were|have|has|had|already|just)\b"
    r"|^\W*(?:did|have|has|had|was|were|does) (?:i|you|we|he|she|they|it|the|my|anyone|someone|somebody|\w+)\b"
    r"|^\W*(?:why|who|whose|how (?:do|can|could|would|should|did|does) (?:i|you|we|one|it)|when (?:did|was|were|do"
    r"|does|is|will)|where (?:did|was|do|is))\b"
    r"|\balready (?:\w{3,}ed|done|sent|made)\b|\bi(?:'m| am) (?:going|about|planning|thinking)\b|\byesterday i\b"
    r"|\b(?:told|asked|wants?) (?:me|him|her|us)\b"
    r"|\bya (?:he|has|ha|hemos|han|esta|lo|la|se)\b|^\W*(?:he|has|ha|hemos|han|habia|habias) \w+[adsth]o\b"
    r"|\bayer (?:me |te |se |le )?\w+[eo]\b"
    r"|^\W*(?:quien|por que|como (?:puedo|podria|se|hago|funciona)|cuando|donde)\b|\b(?:me|te|le|nos) (?:dijo"
    r"|dijeron|pidio|pidieron)\b"
)
_PAST = re.compile(r"^\W*(?:[A-ZÁÉÍÓÚ]\w+ )?\w{2,}(?:ó|é|aste|iste|aron|ieron|aba|aban)\b")
"""A Spanish verb in the past at the start: only its accents tell it from a command."""


def find_prohibition(text: str, *, reading: bool = False) -> Why | None:
    """Why a sentence asks for nothing to be done; None if it may be a request.

    ``reading`` is for capabilities that only look something up: there a question is a request.
    """
    if len(text) > 2 * _LONGEST_END:  # nobody hides a request in the middle of a page
        text = f"{text[:_LONGEST_END]} {text[-_LONGEST_END:]}"
    asked = _QUOTED.sub(_blank, text).replace("\u2019", "'")
    said = _HARMLESS.sub(_blank, fold_letters(asked))
    if _WITHDRAWN.search(said):
        return "withdrawn"
    if body := _CONTENT.search(said) or _SAY.search(said):
        said = said[: body.start() if body.re is _CONTENT else body.end()]
    if (wonder := _HYPOTHETICAL.search(said)) and not (reading and wonder[0].startswith("what will")):
        return "hypothetical"
    # "Sí", with its accent, is a yes.
    conditional = _CONDITIONAL.search(said) or any(asked[m.start() + 1] in "iI" for m in _SI.finditer(said))
    if conditional and not (reading and (_INDIRECT.search(said) or _ASKED.search(said))):
        return "conditional"
    if _FORBIDS.search(said):
        return "forbids"
    if not reading and (_REPORT.search(said) or _PAST.search(asked[: len(said)])):
        return "report"
    return None


def blank_courtesies(text: str) -> str:
    """The text without what sounds like a prohibition or a condition and is none, such as "if you can"."""
    letters = [*text]
    quoted = [match.span() for match in _QUOTED.finditer(text)]
    for match in _COURTEOUS.finditer(fold_letters(text)):
        if not any(start < match.end() and match.start() < end for start, end in quoted):
            letters[match.start() : match.end()] = " " * len(match[0])
    return "".join(letters)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
