"""Words that a reading may pass over: courtesies, marks, and the words of the capability itself.

Whatever else stands in a sentence is a value, or announces one, or leads to a question.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent3.sentences.announcements import DETERMINERS, TAIL, TELLING, Scene, row_at, row_length, rows
from agent3.sentences.lexicon import BROAD, EMPTY, is_action, same_stem

__all__ = ["FILLER", "NEW", "Pass", "pass_over"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Tokens up to ``last`` that need no place. One that ``anchors`` speaks of the capability, or says it is wanted."""

    last: int
    cost: float
    what: str
    anchors: bool = False


FILLER = (
    EMPTY
    | DETERMINERS
    | frozenset(
        "please kindly thanks thank ok okay hello hi hey oye pls just now right away here there asap immediately also "
        "too so well would like i'd id i'll need want wants wanted let's lets go ahead help able make sure quick "
        "quickly moment am were was been be being can could will favor gracias hola buenas ahora ya mismo aqui tambien "
        "pues bien ayuda ayudame gustaria querria deseo tengo tienes hay he ha cuanto antes haga hagas hazme necesita "
        "podrias puede podeis poder whatever it's i'm what's where's who's that's there's they we us him her one ones "
        "their theirs esto eso ello ellos nos os vez end up forget olvides i've got have anda porfa venga "
        "specific especifico".split()
    )
)
_RETRIEVING = frozenset(
    "show tell give get find list see look read check fetch display know view open what which who how much many is "
    "are does do did dame dime muestra muestrame mostrar ensename lista listar ver mira mirar saber obten obtener "
    "busca buscar encuentra consulta cual cuales que quien como cuanto cuantos cuanta cuantas esta estan hay abre lee "
    "leer pone pon traeme trae go say when where cuando donde any busco buscame vale son es era fue current currently "
    "latest va dice dicen says whether voy ir llego llegar llega come has have tiene tienen tengo contiene hara haran "
    "will be like going hacer hace".split()
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
        ("put together", "create"),
        ("sign up", "register subscribe"),
    )
)
"""Verbs of several words, and what they mean."""
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


def pass_over(scene: Scene, index: int) -> Pass | None:
    """How a token may be passed over; None if it needs a place."""
    tokens, form = scene.tokens, scene.form
    token, means = tokens[index], tokens[index].means
    if length := row_length(tokens, index, _COURTESIES):
        return Pass(index + length, 0.0, "courtesy")
    if token.shape == "mark":
        return Pass(index + 1, 0.0, "mark")
    if token.shape != "word":
        return None
    here = index + 1
    if (
        index < scene.preamble
        and not scene.atoms[index]
        and token.plain not in TELLING
        and (token.value[:1].islower() or index == 0 or token.plain in FILLER)
    ):
        return Pass(here, 0.1, "preamble")
    if token.plain in _BEFORE_DATE and here < len(tokens) and any(atom.kind == "date" for atom in scene.atoms[here]):
        return Pass(here, 0.0, "courtesy")
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
        fits = means & form.verbs or (means - BROAD) & form.named
        looks = form.reading and (token.plain in _RETRIEVING or means & _LOOKING)
        return Pass(here, 0.0, "capability", anchors=True) if fits or looks or token.plain in _WANTING else None
    if means & form.named and (token.plain not in _COSTLY or index == 0):
        return Pass(here, 0.0, "capability", anchors=not form.undoes or bool(means & form.verbs))
    if token.plain in _WANTING:
        return Pass(here, 0.0, "courtesy", anchors=not form.undoes)
    if form.reading and (token.plain in _RETRIEVING or means & _LOOKING):
        return Pass(here, 0.0, "courtesy", anchors=True)
    if token.plain in TELLING:
        return Pass(here, 0.1, "capability") if means & form.told else None
    if token.plain in _COSTLY:
        return Pass(here, 0.15, "courtesy")
    if token.plain in FILLER:
        return Pass(here, 0.0, "courtesy")
    told = means & form.told or any(same_stem(token.plain, word) for word in form.told_words)
    if told and not (not form.reading and token.plain in _RETRIEVING):
        proper = index > 0 and token.value[:1].isupper() and tokens[index - 1].shape != "mark"
        return Pass(here, 0.5 if proper else 0.1, "capability", anchors=not form.undoes)
    if token.plain in NEW or (form.reading and token.plain in _LIGHT):
        return Pass(here, 0.2, "courtesy")
    return None
