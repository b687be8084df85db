"""What pages say, without how: the content of fourteen pages, in English and Spanish, for ``bench.redesigned`` to draw.

Written without knowledge of how healing judges. Nothing here may be changed to suit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["PAGES", "Bar", "Block", "Control", "Form", "Kind", "Page", "Rows"]

Kind = Literal["button", "link", "text", "select", "checkbox", "radio", "tab"]


@dataclass(frozen=True, slots=True)
class Control:
    """Something to act on. ``words`` are what it says, first as it was, then what a redesign may say for the same."""

    key: str
    kind: Kind
    words: tuple[str, ...]
    instead: str = ""
    """What may stand in its place and is not it."""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """Fields and what sends them."""

    titles: tuple[str, ...]
    controls: tuple[Control, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table or list with controls in each row. The first cell says which row it is; the others may change."""

    titles: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    actions: tuple[Control, ...]
    more: tuple[tuple[str, ...], ...] = ()
    """Rows that come later."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Links, tabs or tools in a line."""

    titles: tuple[str, ...]
    controls: tuple[Control, ...]
    more: tuple[Control, ...] = ()


Block = Form | Rows | Bar


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page."""

    name: str
    language: str
    heading: str
    blocks: tuple[Block, ...]


# Content. ``|`` stands between wordings.


def _one(kind: Kind, key: str, words: str, instead: str = "", options: str = "") -> Control:
    return Control(key, kind, tuple(words.split("|")), instead, tuple(options.split("|")) if options else ())


def _button(key: str, words: str, instead: str = "") -> Control:
    return _one("button", key, words, instead)


def _link(key: str, words: str, instead: str = "") -> Control:
    return _one("link", key, words, instead)


def _text(key: str, words: str, instead: str = "") -> Control:
    return _one("text", key, words, instead)


def _pick(key: str, words: str, options: str, instead: str = "") -> Control:
    return _one("select", key, words, instead, options)


def _check(key: str, words: str, instead: str = "") -> Control:
    return _one("checkbox", key, words, instead)


def _radio(key: str, words: str, instead: str = "") -> Control:
    return _one("radio", key, words, instead)


def _tab(key: str, words: str, instead: str = "") -> Control:
    return _one("tab", key, words, instead)


def _form(titles: str, *controls: Control) -> Form:
    return Form(tuple(titles.split("|")), controls)


def _bar(titles: str, *controls: Control, more: Sequence[Control] = ()) -> Bar:
    return Bar(tuple(titles.split("|")), controls, tuple(more))


def _rows(titles: str, columns: str, rows: str, more: str, *actions: Control) -> Rows:
    def table(text: str) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(row.split(",")) for row in text.split(";") if row)

    return Rows(tuple(titles.split("|")), tuple(columns.split(",")), table(rows), actions, table(more))


_ORDERS = Page(
    "orders",
    "en",
    "Your orders",
    (
        _bar(
            "Account|My account",
            _link("acc-orders", "Orders|Purchases"),
            _link("acc-addresses", "Addresses|Address book", "Payment methods"),
            _link("acc-wishlist", "Wish list|Saved items", "Gift cards"),
            _link("acc-out", "Sign out|Log out", "Sign in"),
            more=[_link("acc-coupons", "Coupons")],
        ),
        _form(
            "Filter|Narrow down",
            _text("order-q", "Order number|Order no.", "Coupon code"),
            _pick("order-when", "Period|Date range", "Last 30 days|2026|2025", "Currency"),
            _button("order-go", "Show orders|Show", "Clear filter"),
        ),
        _rows(
            "Recent orders|Latest orders",
            "Order,Date,Total,State",
            "A-1001,3 May,$ 41.00,Shipped;A-1002,9 May,$ 12.50,Delivered;A-1003,1 June,$ 99.90,Packing",
            "A-1004,2 June,$ 7.25,Packing;A-1005,4 June,$ 64.00,Shipped",
            _button("track", "Track|Track parcel", "Return"),
            _button("again", "Buy again|Reorder", "Write a review"),
            _link("invoice", "Invoice|Download invoice", "Report a problem"),
        ),
    ),
)
_ACCOUNT = Page(
    "account",
    "en",
    "Settings",
    (
        _form(
            "Profile|Public profile",
            _text("first", "First name|Given name", "Nickname"),
            _text("last", "Last name|Family name|Surname", "Company"),
            _text("phone", "Phone|Telephone", "Fax"),
            _pick("zone", "Time zone|Timezone", "UTC|Madrid|Lima", "Currency"),
            _button("keep-profile", "Save profile|Update profile", "Delete profile"),
        ),
        _form(
            "Notifications|Alerts",
            _check("by-mail", "Notify me by email|Email notifications", "Share my email with partners"),
            _check("by-sms", "Notify me by SMS|SMS notifications", "Share my number with partners"),
            _check("weekly", "Weekly digest|Weekly summary", "Daily digest"),
            _button("keep-alerts", "Save notifications|Save alerts", "Mute everything"),
        ),
        _form(
            "Password|Change password",
            _text("old-pass", "Current password|Old password", "Security question"),
            _text("new-pass", "New password|Choose a new password", "Recovery code"),
            _button("change-pass", "Change password|Set password", "Sign out everywhere"),
        ),
    ),
)
_BASKET = Page(
    "basket",
    "en",
    "Checkout",
    (
        _rows(
            "Basket|Your basket",
            "Article,Size,Price",
            "Trail shoe,42,$ 89.00;Rain jacket,M,$ 120.00;Wool socks,40,$ 9.50",
            "Sun hat,one size,$ 19.00",
            _pick("amount", "Quantity|Qty", "1|2|3", "Size"),
            _button("drop", "Remove|Remove item", "Save for later"),
        ),
        _form(
            "Delivery|Shipping",
            _radio("ship-slow", "Standard delivery|Standard shipping", "Pick up in store"),
            _radio("ship-fast", "Express delivery|Express shipping", "Same day delivery"),
            _text("street", "Street|Street address", "Company"),
            _text("zip", "Postcode|ZIP code|Postal code", "Tax number"),
        ),
        _form(
            "Payment|Pay",
            _radio("pay-card", "Credit card|Card", "Gift card"),
            _radio("pay-bill", "Invoice|Pay by invoice", "Instalments"),
            _text("promo", "Promo code|Discount code", "Loyalty number"),
            _button("promo-go", "Apply code|Redeem", "Buy a gift card"),
            _check("agree", "I accept the terms|I agree to the terms", "Send me offers"),
            _button("order-now", "Place order|Buy now|Order now", "Save basket"),
        ),
    ),
)
_TEAM = Page(
    "team",
    "en",
    "Team",
    (
        _form(
            "Invite|Invite people",
            _text("mate", "Email of the new member|New member's email", "Name of the team"),
            _pick("part", "Role|Permission", "Viewer|Editor|Owner", "Language"),
            _button("invite", "Send invitation|Invite", "Copy link"),
        ),
        _rows(
            "Members|People",
            "Name,Role,Since",
            "Ana Ruiz,Owner,2021;Bo Lind,Editor,2023;Chen Wei,Viewer,2024;Dana Roy,Editor,2025",
            "Eli Katz,Viewer,2026;Fay Moore,Editor,2026",
            _button("rights", "Change role|Edit role", "Transfer ownership"),
            _button("kick", "Remove from team|Remove member", "Send message"),
        ),
        _bar(
            "Teams|Workspaces",
            _link("team-plan", "Plan|Subscription", "Upgrade"),
            _link("team-audit", "Activity log|Audit log", "Integrations"),
            more=[_link("team-sso", "Single sign-on")],
        ),
    ),
)
_USAGE = Page(
    "usage",
    "en",
    "Project Aurora",
    (
        _bar(
            "Views",
            _tab("tab-over", "Overview|Summary", "Roadmap"),
            _tab("tab-bill", "Billing|Invoices", "Members"),
            _tab("tab-use", "Usage|Consumption", "Limits"),
            _tab("tab-danger", "Danger zone|Advanced", "Backups"),
            more=[_tab("tab-logs", "Logs"), _tab("tab-keys", "API keys")],
        ),
        _bar(
            "Tools",
            _button("start", "Start|Run", "Stop"),
            _button("pause", "Pause|Hold", "Resume"),
            _button("copy-id", "Copy project ID|Copy ID", "Copy password"),
            more=[_button("star", "Star")],
        ),
        _form(
            "Budget|Spending limit",
            _text("limit", "Monthly limit|Limit per month", "Discount"),
            _check("stop-at", "Stop at the limit|Stop when the limit is reached", "Raise automatically"),
            _button("keep-limit", "Save budget|Save limit", "Remove budget"),
        ),
    ),
)
_FILES = Page(
    "files",
    "en",
    "Files",
    (
        _bar(
            "Tools",
            _button("upload", "Upload|Upload files", "Empty trash"),
            _button("folder", "New folder|Create folder", "New document"),
            _button("sort", "Sort by name|Sort A to Z", "Sort by size"),
            more=[_button("scan", "Scan")],
        ),
        _rows(
            "Documents|All files",
            "File,Size,Changed",
            "budget.xlsx,12 KB,Monday;notes.txt,2 KB,Tuesday;photo.png,1.2 MB,Friday;offer.pdf,88 KB,Sunday",
            "draft.docx,41 KB,today;logo.svg,3 KB,today",
            _button("rename", "Rename|Change name", "Duplicate"),
            _button("share", "Share|Share file", "Make public"),
            _button("trash", "Delete|Move to trash", "Archive"),
        ),
        _form(
            "Delete this file?|Really delete?",
            _check("forever", "Delete for ever|Delete permanently", "Delete all versions"),
            _button("yes", "Yes, delete|Delete file", "Delete everything"),
            _button("no", "No, keep it|Keep file", "Ask later"),
        ),
    ),
)
_LIBRARY = Page(
    "biblioteca",
    "es",
    "Catálogo de la biblioteca",
    (
        _form(
            "Búsqueda|Buscar en el catálogo",
            _text("titulo", "Título|Título de la obra", "Editorial"),
            _text("autor", "Autor|Nombre del autor", "Traductor"),
            _pick("sala", "Sede|Biblioteca", "Centro|Norte|Sur", "Idioma"),
            _check("libres", "Solo disponibles|Mostrar solo disponibles", "Solo novedades"),
            _button("buscar", "Buscar|Buscar libros", "Limpiar"),
        ),
        _rows(
            "Resultados|Obras encontradas",
            "Obra,Autor,Estado",
            "La colmena,Cela,disponible;Rayuela,Cortázar,prestado;Nada,Laforet,disponible",
            "Ficciones,Borges,disponible;El túnel,Sabato,prestado",
            _button("reservar", "Reservar|Hacer reserva", "Renovar"),
            _link("ficha", "Ver ficha|Detalles", "Ver reseñas"),
        ),
        _bar(
            "Menú",
            _link("mis-libros", "Mis préstamos|Préstamos", "Mis multas"),
            _link("ayuda", "Ayuda|Preguntas frecuentes", "Contacto"),
            _link("salir", "Cerrar sesión|Salir", "Iniciar sesión"),
            more=[_link("agenda", "Agenda cultural")],
        ),
    ),
)
_DOCTOR = Page(
    "cita",
    "es",
    "Pedir cita",
    (
        _form(
            "Datos del paciente|Paciente",
            _text("nombre", "Nombre|Nombre de pila", "Mutua"),
            _text("apellidos", "Apellidos|Primer y segundo apellido", "Alergias"),
            _text("dni", "DNI|Documento de identidad", "Número de póliza"),
            _text("movil", "Teléfono móvil|Móvil", "Teléfono de un familiar"),
        ),
        _form(
            "La cita|Tu cita",
            _pick("especie", "Especialidad|Servicio", "Pediatría|Dermatología", "Seguro"),
            _radio("manana", "Por la mañana|Turno de mañana", "Urgente"),
            _radio("tarde", "Por la tarde|Turno de tarde", "Videollamada"),
            _check("aviso", "Recordármelo por SMS|Aviso por SMS", "Recibir publicidad"),
            _button("pedir", "Pedir cita|Solicitar cita", "Anular cita"),
            _button("borrar", "Borrar formulario|Vaciar", "Guardar borrador"),
        ),
    ),
)
_BANK = Page(
    "banco",
    "es",
    "Banca en línea",
    (
        _bar(
            "Menú",
            _link("cuentas", "Cuentas|Mis cuentas", "Hipotecas"),
            _link("tarjetas", "Tarjetas|Mis tarjetas", "Seguros"),
            _link("buzon", "Buzón|Mensajes", "Promociones"),
            more=[_link("bolsa", "Bolsa"), _link("divisas", "Divisas")],
        ),
        _form(
            "Transferencia|Enviar dinero",
            _text("quien", "Beneficiario|Nombre del beneficiario", "Ordenante"),
            _text("iban", "IBAN|Cuenta de destino", "Cuenta de origen"),
            _text("importe", "Importe|Cantidad", "Comisión"),
            _text("concepto", "Concepto|Motivo", "Referencia fiscal"),
            _button("seguir", "Continuar|Siguiente", "Programar"),
            _button("dejar", "Cancelar|Descartar", "Guardar plantilla"),
        ),
        _rows(
            "Movimientos|Últimos movimientos",
            "Concepto,Fecha,Importe",
            "Nómina,1 mayo,1.800 €;Alquiler,2 mayo,-750 €;Luz,5 mayo,-61 €;Gimnasio,7 mayo,-30 €",
            "Agua,9 mayo,-22 €;Teatro,11 mayo,-48 €",
            _link("recibo", "Justificante|Descargar justificante", "Reclamar"),
            _button("repetir", "Repetir|Volver a hacer", "Devolver"),
        ),
    ),
)
_SLOTS = Page(
    "slots",
    "en",
    "Book a court",
    (
        _bar(
            "Days|Choose a day",
            _button("day-mon", "Mon 4 May|Monday 4 May", "Mon 11 May"),
            _button("day-tue", "Tue 5 May|Tuesday 5 May", "Tue 12 May"),
            _button("day-wed", "Wed 6 May|Wednesday 6 May", "Wed 13 May"),
            more=[_button("day-thu", "Thu 7 May")],
        ),
        _rows(
            "Courts|Free courts",
            "Court,Ground,Price",
            "Court 1,clay,$ 20;Court 2,clay,$ 20;Court 3,grass,$ 28",
            "Court 4,hard,$ 18",
            _button("at-0900", "09:00|9:00 am", "21:00"),
            _button("at-1030", "10:30|10:30 am", "22:30"),
        ),
        _form(
            "Players|Who plays",
            _text("mate-1", "Second player|Player 2", "Trainer"),
            _check("rackets", "Hire rackets|Rent rackets", "Hire a trainer"),
            _button("book", "Book court|Reserve court", "Join waiting list"),
        ),
    ),
)
_EDITOR = Page(
    "editor",
    "en",
    "Edit article",
    (
        _bar(
            "Format",
            _button("bold", "Bold|Strong", "Italic"),
            _button("list", "Bulleted list|Bullets", "Numbered list"),
            _button("undo", "Undo|Undo last change", "Redo"),
            _button("image", "Insert image|Add image", "Insert table"),
            more=[_button("quote", "Quote"), _button("code", "Code")],
        ),
        _form(
            "Article|Post",
            _text("headline", "Headline|Title", "Subtitle"),
            _text("slug", "Address of the page|URL slug", "Canonical address"),
            _pick("rubric", "Section|Category", "Sports|Politics|Arts", "Author"),
            _check("comments", "Allow comments|Comments allowed", "Hide author"),
            _button("draft", "Save draft|Save as draft", "Discard draft"),
            _button("look", "Preview|Show preview", "History"),
            _button("publish", "Publish|Publish now", "Unpublish"),
        ),
    ),
)
_TICKETS = Page(
    "tickets",
    "en",
    "Support desk",
    (
        _form(
            "Find tickets|Search tickets",
            _text("find", "Search tickets|Find in tickets", "Search people"),
            _pick("owner", "Assignee|Assigned to", "Anyone|Me", "Team"),
            _button("find-go", "Search|Find", "Save search"),
        ),
        _rows(
            "Open tickets|Tickets",
            "Ticket,Subject,Age",
            "#881,Printer on fire,2 h;#882,Cannot log in,3 h;#883,Invoice wrong,1 d;#884,Slow network,2 d",
            "#885,New laptop,5 min;#886,Broken chair,9 min",
            _link("open", "Open|Open ticket", "Merge"),
            _button("take", "Assign to me|Take", "Escalate"),
            _button("shut", "Close ticket|Resolve", "Reopen"),
        ),
        _bar(
            "Pages",
            _link("page-1", "1"),
            _link("page-2", "2", "5"),
            _link("page-3", "3", "6"),
            _link("page-next", "Next|Next page", "Last page"),
            more=[_link("page-4", "4")],
        ),
    ),
)
_SURVEY = Page(
    "survey",
    "en",
    "How did we do?",
    (
        _form(
            "Was the staff friendly?|Friendliness of the staff",
            _radio("staff-yes", "Very friendly|Yes, very", "Friendly enough"),
            _radio("staff-no", "Not friendly|Not at all", "Cannot say"),
        ),
        _form(
            "Was the room clean?|Cleanliness of the room",
            _radio("room-yes", "Spotless|Perfectly clean", "Clean enough"),
            _radio("room-no", "Dirty|Not clean", "Did not notice"),
        ),
        _form(
            "Anything else?|Your words",
            _text("words", "Your comment|Comment", "Your address"),
            _check("call-me", "You may call me back|Call me back", "Sign me up for news"),
            _button("hand-in", "Submit answers|Send answers", "Save for later"),
            _button("skip", "Skip survey|No thanks", "Start over"),
        ),
    ),
)
_PLAYLIST = Page(
    "lista",
    "es",
    "Mi lista de música",
    (
        _bar(
            "Reproductor",
            _button("tocar", "Reproducir|Tocar", "Detener"),
            _button("sigue", "Canción siguiente|Siguiente", "Canción anterior"),
            _button("mezcla", "Orden aleatorio|Mezclar", "Repetir todo"),
            more=[_button("letra", "Letra")],
        ),
        _rows(
            "Canciones|Temas",
            "Canción,Artista,Duración",
            "Malagueña,Lecuona,3:10;Clandestino,Manu Chao,2:28;Volver,Gardel,2:56;La llorona,Vargas,4:01",
            "Gracias a la vida,Parra,4:22;Guantanamera,Cruz,3:30",
            _button("cola", "Añadir a la cola|Poner en cola", "Bloquear artista"),
            _link("bajar", "Descargar|Bajar canción", "Compartir"),
            _button("quitar", "Quitar de la lista|Eliminar de la lista", "Marcar favorita"),
        ),
        _form(
            "Lista nueva|Crear lista",
            _text("lista", "Nombre de la lista|Título de la lista", "Descripción"),
            _check("publica", "Lista pública|Visible para todos", "Lista colaborativa"),
            _button("crear", "Crear lista|Crear", "Importar lista"),
        ),
    ),
)
PAGES = (
    *(_ORDERS, _ACCOUNT, _BASKET, _TEAM, _USAGE, _FILES, _LIBRARY),
    *(_DOCTOR, _BANK, _SLOTS, _EDITOR, _TICKETS, _SURVEY, _PLAYLIST),
)
