"""Words that a reading may pass over: courtesies, marks, and the words of the capability itself.

Whatever else stands in a sentence is a value, or announces one, or leads to a question.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent3.sentences.announcements import DETERMINERS, TAIL, TELLING, WRITING_DOWN, Scene, row_at, row_length, rows
from agent3.sentences.lexicon import (
    BROAD,
    EMPTY,
    base_forms,
    is_action,
    is_cognate,
    is_common,
    is_known,
    same_stem,
    things,
)
from agent3.sentences.slots import EXCLUDING, RECORDS, Form
from agent3.sentences.tokens import FORBIDDING, is_sign

__all__ = ["FILLER", "NEW", "Pass", "pass_over", "switches_otherwise"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Tokens up to ``last`` that need no place. One that ``anchors`` speaks of the capability, or says it is wanted."""

    last: int
    cost: float
    what: str
    anchors: bool = False
    names: frozenset[int] = frozenset()
    """Slots that were named, and whose value has to be said elsewhere: "the status of ticket 4 to closed"."""


FILLER = (
    EMPTY
    | DETERMINERS
    | frozenset(
        "please kindly thanks thank ok okay hello hi hey oye pls just now right away here there asap immediately also "
        "too so well would like i'd id i'll need want wants wanted let's lets go ahead help able make sure quick "
        "quickly moment am were was been be being can could will favor gracias hola buenas ahora ya mismo aqui tambien "
        "pues bien ayuda ayudame gustaria querria deseo tengo tienes hay he ha cuanto antes haga hagas hazme necesita "
        "podrias puede podeis poder whatever it's i'm what's where's who's that's there's they we us him her one ones "
        "their theirs esto eso ello ellos nos os vez up i've got have anda porfa venga "
        "specific especifico she he pueda puedan".split()
    )
)
_RETRIEVING = frozenset(
    "show tell give get find list see look read check fetch display know view open what which who how much many is "
    "are does do did dame dime muestra muestrame mostrar ensename lista listar ver mira mirar saber obten obtener "
    "busca buscar encuentra consulta cual cuales que quien como cuanto cuantos cuanta cuantas esta estan hay abre lee "
    "leer pone pon traeme trae go say when where cuando donde any busco buscame vale son es era fue current currently "
    "latest va dice dicen says whether voy ir llego llegar llega come has have tiene tienen tengo contiene hara haran "
    "will be like going hacer hace use uses usa usan utiliza looks happening there pasa sale salen aparece aparecen "
    "exist exists existe existen stand stands traer sacame saca bring pull mean means take llevame llevar".split()
)
_LIGHT_VERBS = frozenset(
    "do make take run give perform have haz hacer hazme dar da realiza realizar ejecuta saca sacar sacame pon poner "
    "ponme pones put".split()
)
_PHRASAL: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = tuple(
    (tuple(row.split()), frozenset(meant.split()))
    for row, meant in (
        ("da de baja", "delete cancel unsubscribe deactivate remove"),
        ("dar de baja", "delete cancel unsubscribe deactivate remove"),
        ("da de alta", "create register add subscribe"),
        ("dar de alta", "create register add subscribe"),
        ("get rid of", "delete"),
        ("deshazte de", "delete"),
        ("set up", "create schedule"),
        *((verb, "transition") for verb in "set move change mark pon mueve cambia marca pasa".split()),
        ("set a", "start create schedule"),
        ("set an", "start create schedule"),
        ("change the size of", "resize"),
        ("cambia el tamano de", "resize"),
        ("cambiar el tamano de", "resize"),
        ("change the name of", "rename"),
        ("cambia el nombre de", "rename"),
        ("cambiar el nombre de", "rename"),
        ("make a backup of", "backup"),
        ("take a backup of", "backup"),
        ("haz una copia de seguridad de", "backup"),
        ("hacer una copia de seguridad de", "backup"),
        ("haz copia de seguridad de", "backup"),
        ("pon en marcha", "start run launch"),
        ("poner en marcha", "start run launch"),
        ("put together", "create"),
        ("sign up", "register subscribe"),
        *(
            (row, "complete finish")
            for row in (
                "mark as done",
                "mark as complete",
                "mark as completed",
                "tick off",
                "check off",
                "marca como hecha",
                "marca como hecho",
                "marca como completada",
                "marca como completado",
                "marcar como hecha",
                "da por hecha",
                "da por terminada",
            )
        ),
        *((f"{verb} down", "log create add record write track") for verb in WRITING_DOWN),
        ("let", "notify send post tell"),
        ("take a", "create capture"),
        ("look up", "search lookup find get read"),
        ("find out", "search lookup find get read"),
        ("take down", "delete remove unpublish"),
        ("bring back", "restore"),
        ("turn down", "lower reject set"),
        ("call off", "cancel"),
        ("scale up", "scale"),
        ("scale down", "scale"),
        ("back up", "backup"),
        ("echa un vistazo a", "read get list show view"),
        ("take a look at", "read get list show view"),
    )
)
"""Verbs of several words, and what they mean."""
_NOUNS_AS_VERBS = frozenset({"create", "send", "start", "run", "perform", "trigger", "begin"})
"""Where one of these is done, its object may be said as a verb: "invoice Ann", "text Bob"."""
_LOOKING = frozenset({"read", "search", "lookup"})
_WANTING = frozenset("want need like i'd needs quiero necesito quisiera gustaria querria deseo".split())
_BEFORE_DATE = frozenset("next proximo proxima this este esta coming dia day on el".split())
_LIGHT = frozenset(
    "content contents contenido contenidos result results resultado resultados info information informacion details "
    "detalles data datos text texto phrase frase value valor name nombre number numero list lista thing things cosa "
    "cosas following siguiente new nuevo nueva called llamado class clase level levels nivel niveles".split()
)
"""Nouns that say next to nothing of what is looked for."""
NEW = frozenset("new nuevo nueva nuevos nuevas following siguiente".split())
_COSTLY = frozenset(
    "to from in on at for of with by about into as a de en con por para sobre desde hasta al del que that".split()
)
"""Words that mostly announce something: to pass one over speaks a little against a reading."""
_COURTESIES = TAIL | rows(
    "por favor|thank you|right now|at the moment|for me|in general|ahora mismo|cuanto antes|right away"
    "|de una vez|so much|are enough|is enough|es suficiente|me gustaria|are fine|is fine"
)


_ANYTHING = rows(
    "all|every|todos|todas|todos los|todas las|all the|all of the|todo lo que sepas|lo que sepas|todo lo que tengas"
    "|lo que tengas|lo que haya|todo lo que haya|everything you know|all you know|anything you know|what you know"
    "|everything you have|everything|todo|over the next|for the next|in the next|en los proximos|de los proximos"
    "|durante los proximos|para los proximos|durante las proximas|en las proximas"
)
"""Where something is read: as much as there is, or that a bound follows."""
_JOINING = frozenset("but pero".split())
_LOOSE = frozenset("short brief quick recent recently breve corto corta rapido reciente recientes".split())
"""How somebody wants to be shown something: they say no more than that."""
_TODAY = frozenset("today hoy".split())
_BOUNDS = rows("at most|only the first|only the last|no more than|como maximo|como mucho|maximo|solo los primeros")
_RECENT = rows("most recent|mas reciente|mas recientes|mas nuevo|mas nuevos|mas nueva|mas nuevas")
"""What comes first anyway, where there is nothing to choose an order by."""
_HEADED = _COSTLY - {"que", "that", "as"} | frozenset("is are was were es son era eran".split())


def _names_capability(scene: Scene, index: int) -> bool:
    """Whether what the capability is about comes next: "as a contact"."""
    at = scene.past_articles[min(index, len(scene.tokens))]
    return at < len(scene.tokens) and bool((scene.tokens[at].means - BROAD) & scene.form.named)


def _is_other_thing(scene: Scene, index: int) -> bool:
    """Whether a noun behind the verb is a thing that a capability that acts has nothing to do with.

    "Send the file" sends no draft, though to file, to report and to draft something mean much the same. What only says
    again what is done, such as "make a payment", is no thing.
    """
    tokens, form = scene.tokens, scene.form
    before = tokens[index - 1] if index else tokens[index]
    if form.reading or index <= scene.verb or not (before.plain in DETERMINERS or index == scene.verb + 1):
        return False
    verb, noun = tokens[scene.verb], tokens[index]
    if not verb.means & form.verbs or verb.plain in _LIGHT_VERBS or not is_common(noun.plain):
        return False
    if things(noun.plain) & form.objects:
        return False
    return not any(
        same_stem(noun.plain, word) or is_cognate(noun.plain, word) or noun.plain[:4] == word[:4]
        for word in (*form.told_words, *(noun.means & form.verbs))
    )


def _takes_days(form: Form) -> bool:
    """Whether some parameter could mean a day, so that "today" says something."""
    return any(
        slot.kind in ("date", "datetime", "when") or any(_TODAY & {*row} for _, rows in slot.options for row in rows)
        for slot in form.slots
    )


def _is_sought(scene: Scene, index: int) -> bool:
    """Whether an unknown noun is what is to be shown: "dame el boletaje de X". A known one would have to fit."""
    tokens, token = scene.tokens, scene.tokens[index]
    if index == 0 or len(token.plain) < 4 or not token.value.islower() or is_known(token.plain):
        return False
    before = tokens[index - 1].plain
    if before not in DETERMINERS and before not in _RETRIEVING:
        return False
    if any(tokens[at].shape != "word" or scene.stops[at] for at in range(max(0, index - 3), index)):
        return False
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    return after is None or after.plain in _HEADED or after.shape == "mark"


_ROUGHLY = frozenset(
    "about around approximately roughly nearly almost some casi unos unas aproximadamente alrededor".split()
)


def _is_vague(scene: Scene, index: int) -> bool:
    """Whether an amount is only roughly said to a capability that acts on it: "transfer about 250 euros"."""
    return (
        not scene.form.reading
        and scene.tokens[index].plain in _ROUGHLY
        and index + 1 < len(scene.tokens)
        and any(atom.kind in ("number", "sum", "money", "measure") for atom in scene.atoms[index + 1])
    )


def _is_stop(scene: Scene, index: int) -> bool:
    """Whether "para" is the verb, as in "para el contenedor bd2", of a capability that stops nothing."""
    return (
        index == 0
        and scene.tokens[0].plain == "para"
        and not any(scene.atoms[1:2])  # "para dos personas", after another sentence
        and not scene.tokens[0].means & scene.form.verbs
        and not any(token.shape == "word" and is_action(token.plain) for token in scene.tokens[1:40])
    )


def _keeps_what_is_there(form: Form, verb: str) -> bool:
    """Whether a verb adds to something that a capability would write anew: "append x to a.txt"."""
    adds = not _ADDING.isdisjoint(base_forms(verb))
    return adds and "write" in form.told_words and _ADDING.isdisjoint(form.told_words)


_ADDING = frozenset("append insert add anadir agregar".split())


def _makes_nothing(form: Form, verb: str, means: frozenset[str]) -> bool:
    """Whether a verb makes a record or fills a time, and a capability that makes something makes none of these.

    "open an issue", "block an hour", but not "block the user" or "report the user" to one that creates users.
    """
    said = frozenset(base_forms(verb))
    made = RECORDS if said & _OPENING else _TIMES if said & _BLOCKING else None
    return made is not None and not form.reading and means & form.verbs <= {"create"} and not made & form.named


_OPENING = frozenset("open report raise file abrir reportar denunciar".split())
_BLOCKING = frozenset("block bloquear".split())
_TIMES = frozenset("event meeting appointment calendar time slot hour booking reservation".split())


_SWITCHED = {"on": "off", "off": "on"}


def switches_otherwise(scene: Scene, index: int) -> bool:
    """Whether "on" is what to do, to a capability that turns things off: "turn on alarm 4", "switch alarm 4 on"."""
    said, verbs = scene.tokens[index].plain, scene.form.verbs
    if said not in _SWITCHED or said in verbs or _SWITCHED[said] not in verbs:
        return False
    return index == scene.verb + 1 or _is_last(scene, index)


def _is_undoing(scene: Scene, index: int) -> bool:
    """Whether "un" turns the verb after it round, as in "un delete reminder 4", and is no article."""
    tokens = scene.tokens
    follows = tokens[index + 1].plain if index + 1 < len(tokens) else ""
    return tokens[index].plain == "un" and not scene.form.reading and follows in scene.form.verbs


def _is_sign(scene: Scene, index: int) -> bool:
    """Whether a mark says something, as a word does: a crossed circle, the start of a comment, an empty box."""
    token, text = scene.tokens[index], scene.sentence.text
    if token.value == "[":
        return text[token.end :].lstrip().startswith("]")
    if token.value[-1] == "!" and not text[max(0, token.start - 1) : token.start].strip():
        return text[token.end : token.end + 1].isalnum()  # "!delete", "reminder !4"
    return is_sign(token.value) and not (scene.form.reading and not FORBIDDING & {*token.value})


_UNFINISHED = frozenset(
    "and or the a an with into than y e o u el la los las un una unos unas de del al con para por en desde sobre "
    "hacia".split()
)
"""Words that something has to follow: a sentence that ends with one lost its end."""


def _is_last(scene: Scene, index: int) -> bool:
    return all(token.shape == "mark" for token in scene.tokens[index + 1 :])


_CAPITALS = frozenset("IT IN NO OR ME US AS AT IS BE ES EN DE AL LA".split())
"""Codes of languages, countries and states that are small words otherwise: "from EN to IT"."""


def pass_over(scene: Scene, index: int) -> Pass | None:
    """How a token may be passed over; None if it needs a place."""
    tokens, form = scene.tokens, scene.form
    token, means = tokens[index], tokens[index].means
    if length := row_length(tokens, index, _COURTESIES):
        return Pass(index + length, 0.0, "courtesy")
    if token.shape == "mark":
        return None if _is_sign(scene, index) else Pass(index + 1, 0.0, "mark")
    if token.shape == "code" and token.plain in form.hyphenated:
        return Pass(index + 1, 0.1, "capability")
    if token.shape != "word" or _is_stop(scene, index) or _is_vague(scene, index) or _is_undoing(scene, index):
        return None
    if token.plain in _UNFINISHED and token.value.islower() and _is_last(scene, index):
        return None
    if switches_otherwise(scene, index):
        return None
    if token.value in _CAPITALS and not scene.sentence.text.isupper():
        return None
    here = index + 1
    if (
        index < scene.preamble
        and not scene.atoms[index]
        and token.plain not in TELLING
        and (token.value[:1].islower() or index == 0 or token.plain in FILLER)
    ):
        return Pass(here, 0.1, "preamble")
    if form.reading and (length := row_length(tokens, index, _ANYTHING)):
        return Pass(index + length, 0.1, "courtesy", anchors=True)
    if form.reading and not form.sorts and (length := row_length(tokens, index, _RECENT)):
        return Pass(index + length, 0.2, "courtesy")
    if form.reading and token.plain in _JOINING and row_length(tokens, here, _BOUNDS | EXCLUDING):
        return Pass(here, 0.2, "courtesy")  # "… but at most 20"
    if token.plain in _BEFORE_DATE and here < len(tokens) and any(atom.kind == "date" for atom in scene.atoms[here]):
        return Pass(here, 0.0, "courtesy")
    if length := row_length(tokens, index, form.phrases):
        return Pass(index + length, 0.0, "capability", anchors=not form.undoes)
    for row, meant in _PHRASAL:
        if row_at(tokens, index, row) and meant & form.verbs:
            return Pass(index + len(row), 0.0, "capability", anchors=True)
    if (
        not form.undoes
        and token.plain in _LIGHT_VERBS
        and any(after.shape == "word" and after.means & form.named for after in tokens[here : index + 4])
    ):
        return Pass(here, 0.0, "courtesy", anchors=True)
    if index == scene.verb and token.plain not in _COSTLY and is_action(token.plain):
        # What is to be done must be what the capability does.
        noun = (means - BROAD) & form.named and (
            form.reading or form.verbs & _NOUNS_AS_VERBS or token.plain in form.told_words
        )
        fits = means & form.verbs or noun
        if _keeps_what_is_there(form, token.plain) or _makes_nothing(form, token.plain, means):
            return None
        looks = form.reading and (token.plain in _RETRIEVING or means & _LOOKING or (means - BROAD) & form.told)
        return Pass(here, 0.0, "capability", anchors=True) if fits or looks or token.plain in _WANTING else None
    if _is_other_thing(scene, index):
        return None
    if means & form.named and (token.plain not in _COSTLY or index == 0):
        return Pass(here, 0.0, "capability", anchors=not form.undoes or bool(means & form.verbs))
    if token.plain in _WANTING:
        return Pass(here, 0.0, "courtesy", anchors=not form.undoes)
    if form.reading and (token.plain in _RETRIEVING or means & _LOOKING):
        return Pass(here, 0.0, "courtesy", anchors=True)
    if token.plain in TELLING:
        return Pass(here, 0.1, "capability") if means & form.told else None
    if token.plain in _COSTLY or (token.plain == "como" and _names_capability(scene, here)):
        return Pass(here, 0.15, "courtesy")
    if form.reading and (token.plain in _LOOSE or (token.plain in _TODAY and not _takes_days(form))):
        return Pass(here, 0.2, "courtesy")
    if token.plain in FILLER:
        return Pass(here, 0.0, "courtesy")
    if scene.names[index] and index > scene.verb and here < len(tokens) and tokens[here].plain in ("of", "de", "del"):
        return Pass(here, 0.3, "capability", names=frozenset(scene.names[index]))
    told = means & form.told or any(
        same_stem(token.plain, word) or is_cognate(token.plain, word) for word in form.told_words
    )
    noun = index > 0 and (tokens[index - 1].plain in DETERMINERS or tokens[index - 1].plain in form.hyphenated)
    if told and (form.reading or noun or token.plain not in _RETRIEVING):
        proper = index > 0 and token.value[:1].isupper() and tokens[index - 1].shape != "mark"
        return Pass(here, 0.5 if proper else 0.1, "capability", anchors=not form.undoes)
    if form.reading and _is_sought(scene, index):
        return Pass(here, 0.6, "capability")
    if token.plain in NEW or (form.reading and token.plain in _LIGHT):
        return Pass(here, 0.2, "courtesy")
    return None
