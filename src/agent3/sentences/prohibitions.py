"""Sentences that ask for nothing to be done: they forbid, set a condition, take something back, wonder, report or ask.

"All but one" is among them: what it names is just what is to be left alone.

It reads words alone and leans to one side: to take a request for a prohibition costs a question, the other way round
costs an action that nobody wanted. What is quoted, or is plainly the text of a message, says nothing of the request.
"""

from __future__ import annotations

import re
from typing import Literal

from agent3.sentences.lexicon import fold_letters, is_action, meanings

__all__ = [
    "Why",
    "agrees",
    "asks_about",
    "blank_courtesies",
    "drops_matter",
    "find_prohibition",
    "forbids_all",
    "hesitates",
    "is_withdrawal",
    "leaves_open",
    "leaves_out",
    "only_forbids",
    "refuses",
    "takes_back",
    "tells_something",
]

_LONGEST_WITHDRAWAL = 100
_LONGEST_END = 2_000
"""Characters that are read at each end of a long text: some of the patterns look ahead from every letter."""
Why = Literal["forbids", "conditional", "withdrawn", "hypothetical", "report", "question", "excludes", "open"]

_QUOTED = re.compile(
    r"```.*?```|`[^`]*`|“[^”]*”|«[^»]*»|\"[^\"]*\"|(?<![\w\u2018])['\u2018](?:[^'\u2019]"
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
    r"|\bwith no\b|\bno\. ?\d|\bnot only\b|\bsin falta\b|(?<=\bsin )[^.;,!?]{1,60}? ni\b"
)
# The text of a message begins here; what it says is not said to us. One in quotes, which are blank by now, has its end.
_CONTENT = re.compile(
    r"(?:\b(?:saying|that says|which says|diciendo|que diga|que dice|with (?:the )?(?:text|message|body|content)"
    r"|con (?:el )?(?:texto|mensaje|cuerpo|contenido))\b|:(?=\s))(?!\s{3})"
)
_NEGATED = re.compile(r"(?:n't|\b(?:not|dont|never|no|nunca|jamas|ni)) (?:(?:l[oae]s?|me|te|se|ever|please) )*(\w+)")
_SAY = re.compile(
    r"^\W*(?:(?:please|por favor|can you|could you|puedes|podrias)\W+)*(?:tell|post|write|send|announce|notify|say"
    r"|di|dile|diles|avisa|avisales"
    r"|escribe|publica|manda|envia|anuncia)\b.*?\b(?:that|que)\b"
)
_WITHDRAWN = re.compile(
    r"\bnever ?mind\b|\bforget (?:it|that|about|what|the)\b"
    r"|(?:^\W*(?:(?:please|no|ok|okay|now|just|actually|so)\W+)*|[.;!?]\s)(?:forget (?:to|\w{2,}ing)|skip \w{2,}ing)\b"
    r"|\bscratch that\b|\b(?:cancel|undo|revert|stop) (?:that"
    r"|this|it all|everything)\b"
    r"|\bon second thoughts?\b|\bchanged? my mind\b|\bactually,? (?:no|don'?t|do not)\b|\bjust kidding\b"
    r"|\bhold off\b|\bleave it\b|\bdisregard\b"
    r"|\b(?:no )?wait\b,?|\bhold on\b|\bmejor no\b|\bolvid[ae](?:lo|la|te)\b|\bolvid[ae] (?:de )?\w{2,}[aei]r\b"
    r"|\bdejal[oa]\b|\bcancela (?:eso"
    r"|lo anterior)\b|\bdeshaz(?:lo)?\b"
    r"|\bya no\b|\bhe cambiado de (?:idea|opinion)\b|\bera broma\b|\bno (?:lo|la) hagas\b"
    r"|(?<!de )(?<!en )\besper[ae]\b|\baguanta\b|\btoo late\b"
)
_FORBIDS = re.compile(
    r"\b(?:do not|don'?t|dont|does not|doesn'?t|never|not|cannot|can'?t|won'?t|wouldn'?t|shouldn'?t|mustn'?t"
    r"|needn'?t|isn'?t|aren'?t|wasn'?t"
    r"|avoid|refrain|prevent|forbid(?:den)?|prohibit(?:ed)?|nobody|no one|neither|nor|instead of|rather than)\b"
    r"|n['\u2019]t\b"
    r"|\b(?:as (?:it is|they are)|unchanged|untouched|tal (?:y )?como esta)\b"
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
    r"^\W*(?:if|when) it(?:'s| is) .{1,60}, what\b"
    r"|^\W*(?:si|cuando) (?:en .{1,40} )?(?:son|es|sean) .{1,60},\W*(?:que|cual|cuant)"
    r"|^\W*(?:what|which|how|que|cual|cuanto) (?:time|hour|hora|much|es|is|are)\b.*\b(?:when"
    r"|cuando)\b"
)
_SI = re.compile(r"(?<!\w)si(?!\w)", re.IGNORECASE)
_HYPOTHETICAL = re.compile(
    r"\bwhat (?:would|will|happens|if|might|could)\b|\bwould (?:it|that|this|anything) \w+"
    r"|\b(?:should|shall|must) (?:i|we|it)\b|\bimagine\b|\bhypothetical"
    r"|\bwhat(?:'s| is) the (?:risk|effect|danger)|\bque (?:pasaria|pasa|ocurriria|ocurre|sucederia|sucede) (?:si"
    r"|con|al)\b|\by si\b"
    r"|\b(?:deberia|debo|convendria|seria buena idea|conviene|hipotetic)\w*\b|\bimagina\b|\bsupon(?:gamos|iendo)?\b"
    r"|\bis it (?:safe|ok|okay|possible|wise)\b"
    r"|\bes (?:posible|seguro|buena idea|recomendable)\b"
)
_COUNTERFACTUAL = re.compile(
    r"\b(?:would|could|should|might)(?: not)? have (?:been |\w+ed\b|sent\b|done\b|made\b|bought\b|paid\b|put\b|gone\b)"
    r"|\b(?:habria|hubiera|hubiese)\w* \w+[dsth]o\b"
)
_REPORT = re.compile(
    r"^\W*(?:i|we|you|he|she|they|it|someone|somebody|who|my \w+|the \w+)(?:'ve|'s|'d)? (?:already |just |never "
    r"|have |has |had |was |were |did )*"
    r"(?:(?!need\b|speed\b)\w{2,}ed|sent|wrote|made|put|ran|built|bought|paid|told|asked|said|did|was|were|have|has|had|already|just)\b"
    r"|^\W*(?:did|have|has|had|was|were|does) (?:i|you|we|he|she|they|it|the|my|anyone|someone|somebody|\w+)\b"
    r"|^\W*(?:(?:some|any|every)(?:one|body) else|others?|another \w+|otra persona|alguien mas|otr[oa]s?)"
    r" (?:will|would|can|is|are|has|have|was|should|va|van|lo|la|se|ya)\b"
    r"|^\W*(?:just|recently|yesterday|earlier|last \w+),? (?:(?!need\b|speed\b|embed\b|feed\b)\w{3,}ed|sent|wrote"
    r"|made|bought|paid)\b"
    r"|^\W*how to\b|^\W*como \w{2,}[aei]r(?:l[oae]s?)?\b"
    r"|^\W*(?:why|who|whose|how (?:do|can|could|would|should|did|does) (?:i|you|we|one|it)|when (?:did|was|were|do"
    r"|does|is|will)|where (?:did|was|do|is))\b"
    r"|\balready (?:\w{3,}ed|done|sent|made)\b|\bi(?:'m| am) (?:going|about|planning|thinking)\b|\byesterday i\b"
    r"|\b(?:told|asked|wants?) (?:me|him|her|us)\b"
    r"|\bya (?:he|has|ha|hemos|han|esta|lo|la|se)\b|^\W*(?:he|has|ha|hemos|han|habia|habias) \w+[adsth]o\b"
    r"|\bayer (?:me |te |se |le )?\w+[eo]\b"
    r"|^\W*(?:quien|por que|como (?:puedo|podria|se|hago|funciona)|cuando|donde)\b|\b(?:me|te|le|nos) (?:dijo"
    r"|dijeron|pidio|pidieron)\b"
)
_STATE = re.compile(
    r"^\W*(?:(?!(?:titled|called|named|saying|about|that|which|who|where|titulad[oa]|llamad[oa]|que|sobre)\b)\w+\W+){0,5}?"
    r"(?:is|are|was|were|been|esta|estan|estaba|fue|fueron|sido)\s+(?:already |now |just |ya )?"
    r"(?:\w{2,}(?:ed|ad[oa]s?|id[oa]s?)|done|gone|down|up|off|on)\b"
)
"""How something is: "reminder 4 is deleted"."""
_EXCLUDES = re.compile(
    r"\b(?:all|every\w*|any\w*|each|none|nothing|no)\b[^.;!?]{0,40}?\b(?:but|(?<!and )(?<!, )save|bar|besides)\b"
    r"|\b(?:except(?:ing)?|excluding|(?:apart|aside) from|other than|all but|leav(?:e|ing) out|omitting)\b"
    r"|\b(?:tod[oa]s?|cualquier\w*|cada|nada)\b[^.;!?]{0,40}?\b(?:menos|pero)\b"
    r"|(?<!al )(?<!lo )(?<!mas o )\bmenos (?:el|la|los|las|al|a|mi|mis|este|esta|ese|esa)\b"
    r"|\b(?:salvo|excepto|exceptuando|excluyendo|quitando|a excepcion de|aparte de|con la excepcion de)\b"
)
_DECLINES = re.compile(
    r"\b(?:forbade|forbids|prohibits|prohib(?:io|e|en|ieron|imos))\b"
    r"|\bthe last thing (?:\w+ ){1,2}(?:want|need|wants|needs)\b"
    r"|\blo ultimo que (?:me |nos )?(?:quier|quer|neces|apete)\w+"
    r"|\b(?:is|be|was|it's|that's|seria|es|parece)\b[^.;,!?]{0,20}"
    r"\b(?:(?:bad|terrible|poor|stupid|silly|awful|dumb)"
    r" (?:idea|move|choice|plan)|mistake to|unwise to|mala idea|un error)\b"
    r"|^\W*(?:(?:i|we)(?:'ll|'d| will| would| can| could| have| had)? )?(?:rather )?(?:refuse|decline|do without"
    r"|gave up"
    r"|give up|swore off|pass on)\b(?= (?!to \w+$))|\b(?:steer|stay|keep) (?:clear of|away from)\b"
    r"|\b(?:prescind\w+ de|renunci\w+ a|me niego a|nos negamos a)\b"
)
"""Other ways to say no to something: a ban, a refusal, and a word on how unwise it would be."""
_ASKS_HOW = re.compile(
    r"^\W*(?:(?:please|can you|could you|por favor|puedes|podrias|i|we|would like to|want to|need to|quiero"
    r"|queremos)\W+)*"
    r"(?:(?:explain|describe|clarify|(?:tell|show|teach) (?:me|us)|know|learn|explica(?:me|nos|r)?|dime|dinos|cuentame"
    r"|muestrame|saber|aprender)\W+(?:(?:me|us|to me|in detail|again)\W+)?(?:how|como)\b(?! (?:much|many|long|often))"
    r"|(?:teach (?:me|us) to|learn to|ensen[ae](?:me|nos) (?:a|como)|aprender a)\b)"
    r"|^\W*(?:just )?(?:thinking (?:of|about)|pensando en)\b"
)
_PRETENDS = re.compile(
    r"^\W*(?:(?:please|let'?s|por favor|vamos a)\W+)*(?:pretend|make believe|act as|fing\w*"
    r"|haz(?: como)? que)\b"
)
_MEANT = re.compile(r"\b(?:an?|the|el|la|l[oa]s?|una?) (?:\w+ )?(?:that|which|que)\W*$")
_POLITE = r"^\W*(?:(?:please|hey|hi|hello|ok|okay|so|and|now|por favor|oye|hola|y|bueno)\W+)*"
_REQUEST = re.compile(
    _POLITE + r"(?:(?:can|could|would|will) (?:you|u|someone|somebody)\b|(?:can|could|may) (?:i|we) (?:please )?"
    r"(?:have|get|order|book|buy)\b|(?:do|would) you mind\b|are you able\b|i(?:'d| would) (?:like|love)\b"
    r"|(?:i|we) (?:want|need)\b|(?:me |nos )?(?:lo |la )?(?:puedes?|podrias?|podeis|quieres|querrias)\b"
    r"|(?:me|nos) \w{2,}[aei]s\b|te importa(?:ria)?\b|serias? tan amable\b|quiero\b|quisiera\b|necesito\b"
    r"|(?:me|nos) gustaria\b)"
)
"""The forms of a request that is put as a question."""
_TAG = re.compile(
    r"\b(?:please|pls|ok|okay|(?:can|could|would|will) you|por favor|porfa|vale|puedes|podrias|quieres)\W*$"
)
"""What makes a request of a question at its end."""
_MARKED = re.compile(r"\?\W*$|^\W*\u00bf")
_QUESTION = re.compile(
    _POLITE
    + r"(?:is|are|am|isn't|aren't|do (?:i|you|we|they)|(?:does|did|can|could|may|might|must|will|would) (?:i|you|we"
    r"|he|she|it|they|there|this|that|the|my)|how (?:much|many|long|far|often|big|old)|what(?:'s| is| are| does| do)"
    r"|which|cuant[oa]s?|cual(?:es)?|puedo|podemos|podria)\b"
)
_CANCEL = (
    r"never ?mind|nvm|forget (?:it|that|about (?:it|that))|exit"
    r"|let'?s (?:drop|leave|skip|forget|stop) (?:it|this|that)"
    r"|(?:mejor )?l[oa] dejamos|para(?: ya)?|cancel(?: (?:it|that|this|everything|all of it))?|abort"
    r"|scratch that|leave it|drop it|stop (?:it|that|this)|no,? (?:thanks|thank you)"
    r"|(?:do not|don'?t)(?: do (?:it|that))?"
    r"|i(?: have|'ve)? changed my mind|on second thoughts?(?:,? no)?|nothing,? thanks|olvid[ae](?:lo|la|te)"
    r"|dejal[oa](?: estar)?|cancel(?:a|ar|alo|ala)(?: (?:eso|esto|todo))?|mejor no|(?:no|nada),? gracias"
    r"|no lo hagas|dejemoslo|he cambiado de (?:idea|opinion)|ya no(?: (?:lo )?quiero)?|anul(?:a|alo|ar)"
)
_WITHDRAWAL = re.compile(
    rf"\W*(?:(?:ok|oh|no|please|actually|just|well|sorry|bueno|pues|por favor|perdon)\W+)*(?:{_CANCEL})"
    rf"(?:\W+(?:{_CANCEL}|please|thanks|then|por favor|gracias))*\W*"
)
_WISHING = (
    r"(?:(?:i|we) (?:want|need|would like|have) to |i'd like to |(?:can|could|would|will) you (?:please )?"
    r"|quiero |(?:me )?puedes |podrias )?"
)
_TAKES_BACK = re.compile(
    _POLITE + _WISHING + r"(?:cancel|undo|revert|abort|stop|cancel[ae]\w*|cancelar|anul[ae]\w*|anular|deshaz\w*)\b"
)
_OPENS_FORBIDDING = re.compile(_POLITE + r"(?:do not|don'?t|never|no \w{2,}[ae]s\b|nunca|jamas|ni se te ocurra)\b")
_FORBIDDING_WORD = re.compile(r"\b(?:don?t?|never|no|nunca|jamas|ni)\b")
"""One of them is in whatever ``_OPENS_FORBIDDING`` finds."""
_COURTESY = re.compile(r"\W*(?:please|thanks|thank you|hey|hi|hello|ok|okay|por favor|gracias|oye|hola)\W*")
_CLAUSE = re.compile(r"[,;.:!?]+|\s[-\u2013\u2014]\s|\b(?:but|pero|and|then|y|luego)\b")
_BARE_REFUSAL = re.compile(
    r"\W*(?:(?:no|not|never|nunca|jamas|don'?t|do|no way|ni|please|por favor|thanks|gracias|it|that|this|eso|lo|hagas"
    r"|actually|mejor|wait|at all|anything|nada)\b\W*)+"
)
_REFUSAL = re.compile(
    r"\W*(?:(?:oh|well|um+|no|nope|nah|not|none|nobody|no ?one|nothing|any(?:one|body|thing)?|neither|never|way|please"
    r"|thanks|thank you|sorry|it|that|this|at all|of (?:them|these|those|it)|to|for|with|else|a|para|con|de|por favor"
    r"|gracias|ni|es[oa]s?|esto|ningun[oa]?|nadie|nada|nunca|jamas|tampoco|mejor|en absoluto|ell[oa]s|est[oa]s|l[oa]s?)"
    r"\b\W*)+"
)
_REFUSES_WHOLLY = re.compile(
    r"\W*(?:(?:oh|well|um+|no|ok|please|sorry|thanks|pues|bueno|gracias|por favor)\W+)*(?:"
    r"(?:absolutely|certainly|definitely|of course|hell|surely|preferably|probably|better|rather) (?:not|no)"
    r"|i(?:'d| would) (?:rather|prefer) not(?: to)?(?: (?:say|do (?:it|that)|tell you))?"
    r"|(?:i )?prefer not(?: to)?(?: (?:say|do (?:it|that)|tell you))?|prefiero (?:que )?no(?: (?:decirlo|hacerlo))?"
    r"|(?:there(?:'s| is) )?no need(?: (?:to|for (?:it|that)))?|(?:do not|don'?t) bother|let'?s not(?: do (?:it|that))?"
    r"|(?:it(?:'s| is) )?(?:not|no longer) (?:needed|necessary|wanted)|(?:it )?won'?t be (?:needed|necessary)"
    r"|(?:i(?:'ll)? )?pass|paso|(?:ya )?no hace falta|ya no(?: (?:es|hace) (?:necesario|falta))?"
    r"|claro que no|que no|ni hablar|ni de broma|ni loc[oa]|de ninguna manera|de eso nada|por supuesto que no"
    r"|(?:i )?(?:do not|don'?t) want (?:to|it|that)(?: (?:say|do (?:it|that)|tell you|any ?more))?"
    r"|no (?:lo |la )?quiero)(?:\W+(?:no|thanks|thank you|please|gracias|por favor))*\W*"
)
"""A no in more words."""
_REFUSES = re.compile(
    r"\b(?:no|nope|nah|not|none|nobody|nothing|neither|never|nadie|nada|nunca|jamas|tampoco|ningun[oa]?)\b"
)
_HEDGE = (
    r"(?:maybe|perhaps|possibly|presumably|quizas?|tal vez|a lo mejor|puede(?: ser)? que|posiblemente"
    r"|probablemente)"
)
_KNOW = (
    r"(?:know|remember|recall|care|mind|have (?:it|one|an idea)|say|tell|decide|se|sabria|recuerdo|acuerdo"
    r"|(?:ni )?idea)"
)
_SETTLED = r"(?:sure|certain|decided|clear|segur[oa]|decidid[oa]|clar[oa])"
_THINKING = r"(?:think|check|see|ask|look|decide|pensar\w*|ver\w*|mirar\w*|decidir\w*|piense|vea|mire)"
_MOMENT = r"(?:a|an|one|some|un|una)? ?(?:moment|minute|second|sec|bit|while|time|momento|minuto|segundo|rato)"
_AS_BEFORE = r"(?:always|before|ever|usual|siempre|antes|ayer|(?:the |la )?(?:last|ultima|otra|previous)(?: \w+)?)"
_AGAIN = (
    r"(?:ask me|(?:i'll|i will) (?:tell you|let you know|decide|say)|(?:ya )?te (?:digo|dire|aviso|avisare)"
    r"|(?:ya )?lo (?:decido|decidire|vemos|veremos)|preguntame)"
    r" (?:tomorrow|later|again|soon|next \w+|manana|luego|despues|mas tarde|otro dia)"
    r"|(?:manana|luego|despues|mas tarde) (?:te (?:digo|dire|aviso)|lo (?:vemos|veo|decido))"
)
_HESITATION = re.compile(
    r"\W*(?:(?:oh|ok|okay|well|so|um+|uh+|hm+|er+|eh|please|sorry|just|pues|bueno|por favor|perdon|a ver)\W+)*(?:"
    + "|".join(
        (
            rf"{_HEDGE}(?: (?:later|not|no|luego|mas tarde|(?:another|some other) (?:day|time)|otro dia))?|puede ser",
            r"um+|uh+|hm+|er+|eh|idk|dunno|no idea|ni idea|\?+",
            # Not settled, not known
            rf"not (?:just |quite |so )?(?:yet|now|today|exactly|{_SETTLED})",
            rf"(?:i(?:'m| am)|we(?:'re| are))? ?not (?:so |quite |really )?{_SETTLED}(?: \w+){{0,2}}",
            r"(?:i'm |i am )?unsure",
            r"(?:i(?:'m| am)|we(?:'re| are))? ?still (?:think|decid|check|look)ing(?: \w+){0,2}",
            rf"(?:i|we) (?:have|had)(?: not|n't) (?:yet )?{_SETTLED}(?: \w+){{0,2}}",
            rf"(?:i|we) (?:do not|don'?t|can'?t|cannot|couldn'?t)(?: (?:really|quite|yet))? {_KNOW}(?: \w+)?",
            rf"(?:(?:yo|todavia|aun|pues) )*no (?:(?:lo|la|me|estoy|tengo) ?)*(?:{_KNOW}|{_SETTLED})(?: \w+){{0,3}}",
            r"(?:todavia|aun) no|ahora no|no ahora",
            # To be settled later
            rf"(?:i|we)(?:'ll| will| have to| need to| must) (?:{_THINKING}|tell you|let you know)(?: \w+){{0,4}}",
            rf"(?:let (?:me|us)|dejame(?: que)?) {_THINKING}(?: \w+){{0,5}}",
            r"(?:(?:me )?lo )?(?:pensare|estoy pensando)(?:lo)?",
            rf"(?:hold on|hang on|wait|(?:give|gimme|dame) ?(?:me)?|esper[ae](?:te)?|aguanta)(?: {_MOMENT})?",
            rf"(?=\w+ ){_MOMENT}",
            rf"{_AGAIN}|skip(?: (?:it|this|that))?|not really|(?:no,? )?(?:i )?(?:do not|don'?t) think so|creo que no",
            r"(?:me )?lo pienso|(?:me )?lo pensamos",
            r"(?:ask (?:me )?)?later|(?:some other|another) (?:day|time)|ya (?:vere|te dire|lo vere)",
            r"(?:mejor )?(?:otro dia|luego|mas tarde|despues|en otro momento|otra vez)",
            # Left to another
            r"it depends|depende|whatever|whoever|(?:me )?da igual|lo que (?:quieras|sea)",
            r"elige tu|tu (?:eliges|decides)",
            r"(?:you|u) (?:choose|decide|pick)|(?:it'?s )?up to you",
            rf"(?:the )?(?:same|usual)(?: \w+)?(?: as)?(?: {_AS_BEFORE})?|as (?:always|usual|before)",
            rf"(?:lo|el|la|los) mism[oa]s?(?: (?:de|que))?(?: {_AS_BEFORE})?|(?:lo |como )?(?:de )?siempre",
            r"(?:i need )?(?:some )?help(?: me)?|options|ayuda(?:me)?|socorro",
        )
    )
    + r")(?:\W+(?:please|thanks|sorry|yet|now|though|por favor|gracias|ahora|todavia|aun))*\W*"
)
"""Words that put an answer off, or leave it open."""
_ASKS_ABOUT = re.compile(
    r"\W*(?:(?:sorry|well|so|ok|um+|hm+|wait|pues|perdon|a ver|y)\W+)*(?:"
    r"(?:what|huh|sorry|pardon|why|how|who|which(?: ones?)?|where|when|what for|how come"
    r"|que|como|quien|cual(?:es)?|donde|cuando|perdon|por que|para que)\W*\?+"
    r"|(?:such as|like what|like|for (?:example|instance)|(?:como )?por ejemplo|como (?:cual(?:es)?|que))\W*\?+"
    r"|what do you mean\b[^.!]{0,40}|what(?: are|'s)? (?:the|my) (?:options|choices|possibilities)\W*"
    r"|(?:what|which)(?: \w+)? (?:can|may|should|could) i (?:choose|say|answer|pick|give|put|enter|take)\b[^.!]{0,40}"
    r"|(?:a que te refieres|que quieres decir|(?:que|cuales son las) opciones(?: (?:hay|tengo))?)\W*"
    r"|(?:que|cual(?:es)?)(?: \w+)? (?:(?:me )?recomiendas|puedo (?:elegir|decir|poner|escoger|dar))\b[^.!]{0,40}"
    r")\W*"
)
"""Questions about a question."""
_AGREEING = re.compile(
    r"\W*(?:(?:yes|yeah|yep|ok|okay|sure|fine|right|of course|please|go ahead|do it|si|vale|claro|de acuerdo|venga"
    r"|adelante|hazlo|bueno)\b\W*)+"
)
"""A yes, to a question that none answers."""
_HEDGED = re.compile(
    rf"^\W*(?:\w+\W+){{0,2}}?{_HEDGE}\b|\b(?:{_HEDGE}|some day|algun dia)\W*$"
    r"|^\W*(?:(?:another|some other) (?:day|time)|(?:mejor )?otro dia)\b"
)
_PAST = re.compile(
    r"^\W*(?:(?:[Yy]a|[Aa]yer|[Aa]noche|[Hh]oy|[Aa]ntes|[Rr]eci[eé]n|[Ee]l otro día|[Ee]sta (?:mañana|tarde)),? )*"
    r"(?:(?P<who>yo|ella|él|ellos|[A-ZÁÉÍÓÚ]\w+) )?(?:(?:me|te|se|le|les|lo|la|los|las|nos) )*"
    r"(?!(?:aqu|ah|all|as|caf|qu|por qu)[íé]\b)\w{2,}(?:ó|é|í|aste|iste|aron|ieron|aba|aban)\b"
    r"|\b[Aa]cab(?:o|as|a|amos|an) de \w+[aei]r"
)
"""A Spanish verb in the past at the start: only its accents tell it from a command."""


_DROPS = re.compile(
    _POLITE
    + r"(?:(?:never ?mind|forget|enough(?: of| with)|no more|basta(?: ya)? de|no mas|nada de|pas(?:o|amos) de|hard pass"
    r"|(?:i|we)(?:'ll|'d| will| would)? (?:rather )?(?:skip|pass)|olvid[ae]\w*|dejate de"
    r"|remember that|note that|keep in mind|recuerda que|ten en cuenta|ten presente)\b(?!-)|enough(?: \w+)?\W*$)"
)
_WANTS = re.compile(
    r"\b(?:want|wants|need|needs|(?:i'd|we'd|would) (?:like|love)|wish|fancy|interested in|(?:i|we)(?:'ll| will) have"
    r"|let me have|could use|feel like|looking for|in the mood|please|quiero|queremos|quisiera|necesito|necesitamos"
    r"|(?:me|nos) (?:gustaria|apetece|pon\w*|das?|trae\w*|manda\w*|puede\w*|prepar\w*)|por favor|porfa|dame|ponme"
    r"|danos|traeme|mandame|deseo|se me antoja|tomare|voy a (?:tomar|pedir|querer))\b"
)
"""Words that make a request of whatever they stand in."""
_OTHERS_WISH = re.compile(
    r"^\W*(?:(?:my|our|his|her|their|your|the|mis?|nuestr[oa]s?|sus?|tus?|el|la|los|las) (?:\w+ ){1,3}|(?!(?:i|we|you"
    r"|yo|also|just|please|who|whoever)\b)\w+ )(?:wants?|needs?|would (?:like|love)|wishes|craves|is craving|quieren?"
    r"|desean?"
    r"|necesitan?|prefieren?|le apetece)\b"
)
"""What somebody else wants, which is not said to be an order."""
_LEAVES_OUT = re.compile(
    _POLITE
    + _WISHING
    + r"(?:skip|omit|avoid|drop|remove|ditch|scrap|exclude|leave (?:out|off)|take (?:off|out|away)|hold|pass on|strike"
    r"|quit[ae]\w*"
    r"|omit[ae]\w*|descart[ae]\w*|suprim[ae]\w*|salta(?:te)?|retir[ae]\w*|elimin[ae]\w*|borr[ae]\w*|evit[ae]\w*)\b"
)
"""Verbs by which something is not to be had."""
_TELLING_VERBS = frozenset("like love hate prefer remember think".split())
_GIVING = frozenset("give bring let".split())
_FIRST_WORD = re.compile(r"\W*(?:(?:please|now|just|so|ok|por favor|ahora|pues)\W+)*(\w+)")
_SON = r"(?<!my )(?<!our )(?<!his )(?<!her )(?<!the )(?<!\ba )son"
"""In Spanish what several are, in English a child."""
_ESTA = r"(?<!para )(?<!de )(?<!en )(?<!\ba )(?<!por )esta(?! (?:noche|tarde|semana|manana|vez|mesa|hora|direccion))"
"""How something is, and not this night."""
_TELLS = re.compile(
    r"\b(?:is|are|was|were|isn't|aren't|wasn't|(?<=\bi )am|been|has|had|hates?|hated|loves?|loved|likes?|liked|prefers?"
    r"|dislikes?|enjoys?|enjoyed|remembers?|thinks?|believes?|seems?|tastes?|tasted|sounds?|smells?|looks?|came|arrived|ate|costs?|ordered|bought"
    rf"|{_SON}|{_ESTA}"
    r"|es|era|eran|fue|fueron|estan|estaba|estaban|estuvo|odio|odia|odiamos|detesto|adoro|amo|prefiero|creo"
    r"|pienso|recuerdo|soy|estoy|parece|sabe|costo|cuesta|llego|gusta|gustan|encanta|encantan|sienta|sientan|duele"
    r"|molesta|comi|tengo alergia|soy alergic\w|he comido|habia)\b"
    r"|\b(?:i|you|he|she|it|we|they)(?:'m|'re|'s|'ve) "
)
"""Verbs that tell how something is or was, or what somebody thinks of it."""
_RELATIVE = re.compile(
    r"(?<=\w )(?:that|which|who|whose|where|when|what|whatever|like|as|it|que|como|donde|cuyo|cuya)\b"
    r"|^\W*what(?:ever)?\b(?! an? )"
)
"""What follows says which one is meant: "a cake that is vegan"."""
_DEFINITE = re.compile(
    r"\W*(?:the|my|our|your|his|her|their|this|these|el|la|los|las|mi|mis|nuestr\w+|su|sus|est[ea]s?)\b"
)
_COUNTED = re.compile(
    r"\b(?:a(?! lot| bit)|an|one|two|three|four|five|six|some|another|una?|dos|tres|cuatro|cinco|seis|otr[oa]s?|\d+)\b"
)
_NAMES_NOTHING = re.compile(
    r"\W*(?:i|you|he|she|it|we|they|me|yo|as|so|of|at|in|on|with|for|to|by|because|since|no|not|never|very|too|really"
    r"|all|honestly|always|again|last|yesterday|today|tonight|this|how|why|and|but|hey|hi|hello|dear|thanks|thank|sorry|well"
    r"|oh|ah|de|en|con|sin|por|porque|para|muy|tan|demasiado|como|ya|ayer|hoy|anoche|siempre|nunca|hola|oye|gracias"
    r"|perdon|que|y|pero|bueno|pues|a lot|a bit)\b"
)
"""How what says more of a thing begins, or speaks to somebody, and names nothing that could be asked for."""
_TOLD_PAST = re.compile(r"^\W*(?:ya|ayer|anoche|anteayer|antes) (?:(?:me|te|se|le|nos|lo|la) )?\w{2,}[íéó]\b")


def find_prohibition(text: str, *, reading: bool = False, verbs: frozenset[str] = frozenset()) -> Why | None:
    """Why a sentence asks for nothing to be done; None if it may be a request.

    ``reading`` is for capabilities that only look something up: there a question is a request.
    ``verbs`` are what the capability does: "message: do not send …" forbids it, though a text could begin there.
    """
    if len(text) > 2 * _LONGEST_END:  # nobody hides a request in the middle of a page
        text = f"{text[:_LONGEST_END]} {text[-_LONGEST_END:]}"
    asked = _QUOTED.sub(_blank, text).replace("\u2019", "'").replace("n\u00ba", "n.")  # a number is no "no"
    said = _HARMLESS.sub(_blank, fold_letters(asked))
    if _WITHDRAWN.search(said):
        return "withdrawn"
    if body := _CONTENT.search(said) or _SAY.search(said):
        before, negated = re.findall(r"\w+", said[: body.start()]), _NEGATED.findall(said, body.end())
        asked_before = len(before) > 1 and any(meanings(word) & verbs for word in before)
        if not asked_before and any(meanings(word) & verbs for word in negated):
            return "forbids"
        said = said[: body.start() if body.re is _CONTENT else body.end()]
    if (wonder := _HYPOTHETICAL.search(said)) and not (reading and wonder[0].startswith("what will")):
        return "hypothetical"
    if _is_counterfactual(said):
        return "hypothetical"
    # "Sí", with its accent, is a yes.
    conditional = _CONDITIONAL.search(said) or any(asked[m.start() + 1] in "iI" for m in _SI.finditer(said))
    if conditional and not (reading and (_INDIRECT.search(said) or _ASKED.search(said))):
        return "conditional"
    if _FORBIDS.search(said):
        return "forbids"
    if reading:
        return None
    if (found := _DECLINES.search(said)) and not _names_verb(found[0], verbs):
        return "forbids"
    if _PRETENDS.search(said):
        return "hypothetical"
    if (found := _ASKS_HOW.search(said)) and not _names_verb(found[0], verbs):
        return "report"
    if _EXCLUDES.search(said):
        return "excludes"
    if _REPORT.search(said) or _STATE.search(said) or _tells_past(asked[: len(said)]):
        return "report"
    if not _REQUEST.search(said) and (_QUESTION.search(said) or (_MARKED.search(said) and not _TAG.search(said))):
        return "question"
    return None


def _names_verb(said: str, verbs: frozenset[str]) -> bool:
    """Whether words name what a capability does: "I decline the invitation" asks one that declines."""
    return any(meanings(word) & verbs for word in re.findall(r"\w+", said))


def _tells_past(asked: str) -> bool:
    found = _PAST.search(asked)
    # "Pide té": what looks like somebody's name is a command.
    return found is not None and not (found["who"] and is_action(fold_letters(found["who"])))


def refuses(text: str) -> bool:
    """Whether a text, such as an answer, says nothing but no: "no", "nobody", "none of them", "a nadie"."""
    said = _fold_short(text)
    if not said:
        return False
    return _REFUSES_WHOLLY.fullmatch(said) is not None or bool(_REFUSAL.fullmatch(said) and _REFUSES.search(said))


def agrees(text: str) -> bool:
    """Whether a text says nothing but yes: "ok", "yes, please", "claro"."""
    clauses = [clause for clause in re.split(r"[,;.:!]+", _fold_short(text)) if clause.strip()]
    return bool(clauses) and all(map(_AGREEING.fullmatch, clauses))


def hesitates(text: str, *, agrees: bool = False) -> bool:
    """Whether a text says nothing but that it is not settled yet: "not yet", "let me think", "no lo sé", "help".

    With ``agrees`` also where it is a mere yes, which is no answer to what or who.
    """
    clauses = [clause for clause in re.split(r"[,;.:!]+", _fold_short(text)) if clause.strip()]
    if agrees and clauses and all(map(_AGREEING.fullmatch, clauses)):
        return True
    # "Wait, no": what refuses as well is not settled either.
    passing = (_HESITATION, _REFUSAL, _AGREEING)
    return any(map(_HESITATION.fullmatch, clauses)) and all(
        any(one.fullmatch(clause) for one in passing) for clause in clauses
    )


def asks_about(text: str) -> bool:
    """Whether an answer asks what the question means or what there is to choose from: "such as?", "what can I say?"."""
    said = _fold_short(text)
    return bool(said) and _ASKS_ABOUT.fullmatch(said) is not None


def leaves_open(text: str) -> bool:
    """Whether a message wishes for something only perhaps: "maybe a coffee", "a coffee, I'm not sure"."""
    said = _prepare(text)
    clauses = [clause for clause in re.split(r"[,;.:!?]+", said) if clause.strip() and not _COURTESY.fullmatch(clause)]
    if any(map(_HESITATION.fullmatch, clauses)):
        return True
    return (
        bool(clauses)
        and bool(_HEDGED.search(clauses[0]) or _HEDGED.search(clauses[-1]))
        and not (_REQUEST.search(begun := re.sub(rf"^\W*{_HEDGE}\W*", "", clauses[0])) or begun.startswith("you c"))
    )


def _fold_short(text: str) -> str:
    """A short text folded, for what it says as a whole; "" for a long one, and one with a quotation."""
    if len(text) > _LONGEST_WITHDRAWAL or _QUOTED.search(text):
        return ""
    return fold_letters(text.replace("\u2019", "'"))


def is_withdrawal(text: str) -> bool:
    """Whether a text, such as an answer, says nothing but that the matter is to be dropped. What is quoted does not."""
    if len(text) > _LONGEST_WITHDRAWAL or not _WITHDRAWAL.fullmatch(fold_letters(text.replace("\u2019", "'"))):
        return False
    return _QUOTED.search(text) is None


def forbids_all(text: str) -> bool:
    """Whether a text that forbids something does so as a whole: in its main clause, or by a bare "no" after it.

    "A pizza, but do not cut it" is a request with a restriction; "do not cut the pizza" and "a pizza? never" are none.
    """
    split = _CLAUSE.split(_prepare(text))
    clauses = [clause for clause in split if clause.strip() and not _COURTESY.fullmatch(clause)]
    return any(
        _DECLINES.search(clause)
        or (_FORBIDS.search(clause) and (number == 0 or _BARE_REFUSAL.fullmatch(clause) is not None))
        for number, clause in enumerate(clauses)
    )


def only_forbids(text: str) -> bool:
    """Whether a text is a prohibition and nothing else: "don't …", without another clause."""
    if not _FORBIDDING_WORD.search(fold_letters(text)):
        return False  # as most texts, which need no closer look
    clauses = [clause for clause in _CLAUSE.split(_prepare(text)) if clause.strip() and not _COURTESY.fullmatch(clause)]
    return len(clauses) == 1 and bool(_OPENS_FORBIDDING.search(clauses[0]))


def drops_matter(text: str) -> bool:
    """Whether a text begins by dropping the matter and says nothing else: "never mind the pizza", "no more pizza"."""
    if len(text) > _LONGEST_WITHDRAWAL:
        return False
    clauses = [clause for clause in _CLAUSE.split(_prepare(text)) if clause.strip() and not _COURTESY.fullmatch(clause)]
    return len(clauses) == 1 and bool(_DROPS.search(clauses[0]))


def tells_something(text: str) -> bool:
    """Whether a text only tells something, and asks for nothing: "I hate pizza", "the pizza was cold".

    What has no verb of its own is a request, such as "a large pizza", and so is what has one that asks for something.
    """
    said = _prepare(text)
    if _REQUEST.search(said) or any(_asks(one) and not _DROPS.search(one) for one in _CLAUSE.split(said)):
        return False
    tells = _TOLD_PAST.search(text.casefold()) is not None
    for sentence in re.split(r"[.;:!?]+", said):
        told = False
        for part in re.split(r",|\s[-\u2013\u2014]\s", sentence):
            if _DROPS.search(part) or _OTHERS_WISH.search(part):
                told = True
            elif _WANTS.search(part):
                return False
            elif _tells(part):
                told = True
            elif len(part.split()) > 1 and not _NAMES_NOTHING.match(part) and (not told or _COUNTED.search(part)):
                return False  # "a table for two", beside "it's my birthday"
        tells = tells or told
    return tells


def _tells(part: str) -> bool:
    verbs = [found.start() for found in _TELLS.finditer(part)]
    relative = _RELATIVE.search(part)
    if not verbs or relative is None or verbs[0] <= relative.start():
        return bool(verbs)
    return len(verbs) > 1 and _DEFINITE.match(part) is not None  # "the pizza that I ordered was cold"


def _is_counterfactual(said: str) -> bool:
    """Whether something would have been done; not where that is only said of what is asked for."""
    found = _COUNTERFACTUAL.search(said)
    if found is None:
        return False
    clause = _CLAUSE.split(said[: found.start()])[-1]
    return _MEANT.search(clause) is None and (len(clause.split()) < 3 or not _asks(clause))


def _asks(clause: str) -> bool:
    first = _FIRST_WORD.match(clause)
    return first is not None and (first[1] in _GIVING or is_action(first[1])) and first[1] not in _TELLING_VERBS


def leaves_out(text: str) -> bool:
    """Whether a text asks for something not to be had: "skip the pizza", "quita la pizza"."""
    return bool(_LEAVES_OUT.search(_prepare(text)))


def takes_back(text: str) -> bool:
    """Whether a text asks for something to be undone."""
    return bool(_TAKES_BACK.search(_prepare(text)))


def _prepare(text: str) -> str:
    """Folded, without what is quoted and what only sounds like a prohibition."""
    return _HARMLESS.sub(_blank, fold_letters(_QUOTED.sub(_blank, text).replace("\u2019", "'")))


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
