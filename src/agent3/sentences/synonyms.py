"""Which words mean the same to a tool, in English and Spanish. Each line is one meaning; a word may have several.

Data only, for words that tools and the people who use them both know. ``_`` joins the words of a phrase. The meaning
of a word that is not here is the word itself.
"""

from __future__ import annotations

__all__ = ["CURRENCIES", "LANGUAGES", "MEANINGS", "PLACES", "UNITS"]

MEANINGS = """
send post publish tell notify announce write say message mail email reply deliver inform enviar mandar publicar
send escribir avisar decir notificar anunciar responder comunicar informar pasar
create add new open file make put schedule register log note write plan block raise submit report draft prepare
create insert generate crear anadir agregar abrir hacer poner pon pones programar agendar apuntar anotar registrar
create meter redactar haz generar reportar
set change update adjust scale turn switch put leave make modify edit raise lower increase decrease reduce configure
set subir bajar poner pon pones dejar cambiar ajustar actualizar modificar fijar establecer aumentar reducir
set configurar escalar
delete remove erase drop clear trash discard borrar eliminar quitar suprimir limpiar vaciar
stop halt kill shut terminate parar para detener deten apagar matar finalizar
move rename transfer relocate mover renombrar pasar trasladar
run execute launch trigger perform lanzar ejecutar correr hacer haz
read see view cat open show print display leer ver abrir mostrar contents contenido
before antes
after despues
current actual actualmente now ahora
read leer view see ver
write save store guardar almacenar escribir redactar apuntar anotar note jot compose put poner
move mover pasar trasladar relocate mueve mueva muevas
rename renombrar
copy copiar duplicate duplicar clone clonar
run execute ejecutar correr lanzar launch
stop halt parar detener deten apagar shut shutdown kill terminate para frenar finalizar
start begin iniciar arrancar comenzar empezar inicio empieza arranca
restart reiniciar reboot
turn switch set poner pon ponme ajustar change cambiar
on encender enciende enciendas encienda encendido encendida prender prende activar activa enable enabled
off apagar apaga apague apagues apagado apagada desactivar desactiva disable disabled
save guardar store almacenar keep
load cargar
play reproducir poner pon put escuchar listen
pause pausar
open abrir abre abran abierto abierta
close cerrar cierra cierre
closed cerrado cerrada
lock bloquear
convert convertir convierte change cambiar cambio exchange pasar worth equivalen equivale son
translate traducir traduce traduzca say decir dice dicen
calculate compute calcular evaluate
add sum sumar suma plus mas
multiply multiplicar times por
divide dividir
subtract restar resta minus menos
count contar cuenta
sort order ordenar ordena sorted ordenado
filter filtrar
resize redimensionar redimensiona
rotate rotar
crop recortar
compress comprimir
extract extraer extrae
merge fusionar fusiona unir combine combinar
split dividir divide
schedule programar programa agendar agenda plan planificar
remind reminder recordar recuerda recuerdame recordatorio aviso avisar alert
notify avisar avisa notificar notifica tell announce
post publish publicar publica publiques write escribir
send mail email enviar mandar mandame envia deliver write escribir
email mail correo
sms text
invite invitar invita attendee attendees guest invitado asistente participant participante
assign asignar assignee assignees assigned asignado asignada
label labels tag etiqueta etiquetado labelled labeled tagged
fetch get retrieve obtener traer download descargar descarga page web website site pagina
resolve resolver
lookup look_up consultar consulta
query consulta consultar sql
database base_de_datos bd db
table tabla
column columna
row fila
record registro registros entry entries entrada
folder directory directorio carpeta dir path ruta
file fichero archivo document documento filename path ruta
path ruta file folder
content contents contenido body text texto
text texto phrase frase message mensaje words palabras content
body cuerpo text texto message mensaje content contenido
message mensaje text texto body
subject asunto
title titulo titulado titulada titled heading summary nombre name llamado called
summary resumen title titulo name
name nombre named called llamado llamada titled
description descripcion describe concept concepto
comment comentario comentar
note nota
task tarea todo to_do pendiente quehacer reminder remind recordar recuerda apuntar
list lista listar
calendar calendario agenda
event evento meeting reunion cita appointment
project proyecto
team equipo
repository repositorio repo
owner dueno propietario organization organizacion org usuario user
branch rama
commit confirmar confirmacion
issue incidencia ticket bug problema report
pull_request pr
file_an_issue report
release version
user usuario account cuenta username
customer cliente client
invoice factura facturar bill billing cobrar
payment pago
refund reembolso reembolsar devolver
amount importe cantidad total sum suma monto
price precio coste cost
currency moneda divisa
quantity cantidad
due vencimiento vence deadline plazo limite expire
date fecha day dia
time hora
start inicio comienzo begin desde from
end fin final until hasta
duration duracion
location lugar ubicacion place sitio where donde
city ciudad town
country pais
address direccion
room habitacion cuarto sala
living_room salon sala_de_estar livingroom lounge
kitchen cocina
bedroom dormitorio habitacion alcoba
bathroom bano aseo
office oficina despacho
garage garaje
garden jardin
light luz lamp lampara
brightness brillo intensidad
temperature temperatura
color colour
color color_de
volume volumen
white blanco blanca
black negro negra
red rojo roja
green verde
blue azul
yellow amarillo amarilla
orange naranja
purple morado violeta
pink rosa
weather tiempo clima forecast pronostico rain raining rains lluvia llueve llover lloviendo snow snowing nieve nieva
weather temperature temperatura warm cold frio calor sunny sol wind viento hot hace conditions
forecast pronostico prevision
package parcel paquete shipment envio order pedido
track tracking seguimiento rastrear rastreo seguir llegado arrived where donde status
carrier transportista
status estado state
news noticias
flight flights vuelo volar fly flying
origin origen salida departure
destination destino llegada arrival
departure salida ida
return vuelta regreso back returning volviendo
passenger pasajero traveler traveller person people persona adult adulto viajero
adult adulto person people persona
child nino children kid ninos
night noche
guest huesped person people persona comensal
cabin clase class cabina
economy turista economica
business ejecutiva negocios
first primera
direct directo directa nonstop non-stop sin_escalas
stop escala
hotel alojamiento
restaurant restaurante
replica replicas instance instancia copy copies
scale escalar escala subir sube bajar baja leave dejar deja
deployment despliegue
container contenedor
image imagen picture photo foto
service servicio
server servidor
namespace espacio_de_nombres
node nodo entity entities entidad
memory memoria remember recuerdas know sabes
graph grafo
entity entidad
knowledge conocimiento
search buscar find encontrar look search_for mention mentions mencionan relacionado related
channel canal
thread hilo
reaction reaccion emoji
recipient destinatario to
cc copia con_copia copied
bcc copia_oculta
priority prioridad importance importancia
importance importancia priority prioridad
low bajo baja
normal normal
medium media medio mediano
high alto alta elevada
urgent urgente
critical critico critica
language idioma lengua
code codigo
domain dominio
dns nameserver resolve
ns name_servers nameservers servidores_de_nombres
aaaa ipv6
mx mail_servers servidores_de_correo
url enlace link address direccion page pagina
character caracter caracteres characters char
index indice position posicion
length longitud size tamano
limit limite maximum max maximo tope
page pagina
raw crudo html tal_cual as_is sin_simplificar
result resultado
results resultados
recursive recursivo recursivamente recursively subfolders subcarpetas
hidden oculto ocultos
draft borrador
private privado privada
public publico publica
all todo todos todas every everything
asc ascending ascendente
desc descending descendente
newest latest recent recientes reciente nuevo nuevos
oldest antiguo antiguos
driving drive car by_car coche en_coche conducir conduciendo
walking walk on_foot foot a_pie andando caminando
bicycling cycling bike bicycle bici bicicleta en_bici
transit public_transport bus metro transporte_publico autobus tren
metric celsius metrico
imperial fahrenheit
daily diario diaria every_day
weekly semanal every_week
monthly mensual every_month
yearly anual annual every_year
json
csv
pdf
yes si
monday lunes
tuesday martes
wednesday miercoles
thursday jueves
friday viernes
saturday sabado
sunday domingo
password contrasena clave
key clave
value valor
phone telefono
contact contacto
book libro
author autor
movie film pelicula
song cancion
artist artista
album disco
playlist lista_de_reproduccion
video
recipe receta
ingredient ingrediente
health salud
stock accion acciones share
company empresa
ticker simbolo symbol
crypto cripto
map mapa
route ruta camino directions indicaciones way
distance distancia far lejos
radius radio
near cerca
car coche carro auto
train tren
ticket billete boleto
seat asiento
table mesa
reservation reserva booking reservar book
cancel cancelar anular
delete borrar eliminar remove quitar erase drop
create crear make new nuevo nueva hacer haz generar generate open abrir file
update actualizar modificar change cambiar edit editar set
insert insertar
append anadir agregar
add anadir agregar poner put meter incluir include apuntar new create
upload subir
share compartir
export exportar
import importar
print imprimir
test probar prueba
build compilar construir
deploy desplegar
install instalar
random aleatorio azar
roll tirar lanzar
dice dado dados
generate generar
question pregunta ask preguntar
answer respuesta responder
job trabajo
employee empleado
student alumno estudiante
course curso
class clase
grade nota
month mes
year ano
week semana
hour hora
minute minuto
second segundo
water agua
music musica
game juego
score puntuacion
level nivel
group grupo
member miembro
role rol
permission permiso
cluster
pod
transfer transferir enviar send pasar
listing alojamiento place stay accommodation
schema esquema column columna structure estructura
coordinate coordenada geocode
log logs registro
error fallo
metric metrica
alert alerta
threshold umbral
cron
timezone zona_horaria huso time_zone
"""

CURRENCIES = {
    "USD": "us_dollars us_dollar american_dollars dollars dollar dolares dolar dolares_estadounidenses "
           "dolares_americanos bucks $ us$",
    "EUR": "euros euro €",
    "GBP": "pounds_sterling british_pounds pounds pound libras_esterlinas libras libra quid £",
    "JPY": "yen yens yenes japanese_yen yenes_japoneses ¥",
    "CHF": "swiss_francs swiss_franc francos_suizos francs",
    "CAD": "canadian_dollars canadian_dollar dolares_canadienses",
    "AUD": "australian_dollars australian_dollar dolares_australianos",
    "NZD": "new_zealand_dollars dolares_neozelandeses",
    "MXN": "mexican_pesos mexican_peso pesos_mexicanos",
    "ARS": "argentine_pesos argentinian_pesos pesos_argentinos",
    "COP": "colombian_pesos pesos_colombianos",
    "CLP": "chilean_pesos pesos_chilenos",
    "BRL": "reais real reales brazilian_reais reales_brasilenos",
    "CNY": "yuan chinese_yuan renminbi yuanes",
    "INR": "rupees indian_rupees rupias rupias_indias",
    "KRW": "won korean_won wones",
    "SEK": "swedish_kronor swedish_krona coronas_suecas",
    "NOK": "norwegian_kroner norwegian_krone coronas_noruegas",
    "DKK": "danish_kroner danish_krone coronas_danesas",
    "PLN": "zloty zlotys polish_zloty eslotis",
    "TRY": "turkish_lira liras_turcas", "RUB": "rubles roubles rublos", "ZAR": "rand south_african_rand",
    "SGD": "singapore_dollars", "HKD": "hong_kong_dollars", "PEN": "soles peruvian_soles", "UYU": "uruguayan_pesos",
    "CZK": "czech_koruna", "HUF": "forint", "ILS": "shekels", "THB": "baht", "AED": "dirhams",
}  # fmt: skip
"""Codes of ISO 4217 and how people say them. What could be several, such as a peso, is not here."""

LANGUAGES = {
    "en": "english ingles", "es": "spanish espanol castellano", "fr": "french frances", "de": "german aleman",
    "it": "italian italiano", "pt": "portuguese portugues", "nl": "dutch holandes neerlandes",
    "ja": "japanese japones", "zh": "chinese chino mandarin", "ko": "korean coreano", "ru": "russian ruso",
    "ar": "arabic arabe", "hi": "hindi", "tr": "turkish turco", "pl": "polish polaco", "sv": "swedish sueco",
    "no": "norwegian noruego", "da": "danish danes", "fi": "finnish finlandes fines", "el": "greek griego",
    "cs": "czech checo", "hu": "hungarian hungaro", "ro": "romanian rumano", "uk": "ukrainian ucraniano",
    "he": "hebrew hebreo", "th": "thai tailandes", "vi": "vietnamese vietnamita", "ca": "catalan",
    "eu": "basque euskera vasco", "gl": "galician gallego", "id": "indonesian indonesio", "la": "latin",
}  # fmt: skip
"""Codes of ISO 639-1 and the names of the languages."""

PLACES = {
    "new york": "America/New_York", "nueva york": "America/New_York", "london": "Europe/London",
    "londres": "Europe/London", "tokio": "Asia/Tokyo", "pekin": "Asia/Shanghai", "beijing": "Asia/Shanghai",
    "moscu": "Europe/Moscow", "berlin": "Europe/Berlin", "paris": "Europe/Paris", "roma": "Europe/Rome",
    "rome": "Europe/Rome", "san francisco": "America/Los_Angeles", "ciudad de mexico": "America/Mexico_City",
    "el cairo": "Africa/Cairo", "cairo": "Africa/Cairo", "atenas": "Europe/Athens", "estocolmo": "Europe/Stockholm",
    "bruselas": "Europe/Brussels", "ginebra": "Europe/Zurich", "singapur": "Asia/Singapore", "seul": "Asia/Seoul",
    "barcelona": "Europe/Madrid", "utc": "UTC", "gmt": "GMT", "mumbai": "Asia/Kolkata", "delhi": "Asia/Kolkata",
    "boston": "America/New_York", "seattle": "America/Los_Angeles", "miami": "America/New_York",
    "washington": "America/New_York", "viena": "Europe/Vienna", "varsovia": "Europe/Warsaw", "praga": "Europe/Prague",
    "estambul": "Europe/Istanbul", "sidney": "Australia/Sydney", "lisboa": "Europe/Lisbon",
}  # fmt: skip
"""Cities whose time zone does not bear their name, or bears it in another language."""

UNITS: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("ms", "millisecond", "milisegundo"), ("second", 0.001)),
    **dict.fromkeys(("s", "sec", "second", "segundo"), ("second", 1.0)),
    **dict.fromkeys(("min", "minute", "minuto"), ("second", 60.0)),
    **dict.fromkeys(("h", "hr", "hour", "hora"), ("second", 3_600.0)),
    **dict.fromkeys(("day", "dia"), ("second", 86_400.0)),
    **dict.fromkeys(("week", "semana"), ("second", 604_800.0)),
    **dict.fromkeys(("mm", "millimeter", "milimetro"), ("meter", 0.001)),
    **dict.fromkeys(("cm", "centimeter", "centimetro"), ("meter", 0.01)),
    **dict.fromkeys(("m", "meter", "metre", "metro"), ("meter", 1.0)),
    **dict.fromkeys(("km", "kilometer", "kilometre", "kilometro"), ("meter", 1_000.0)),
    **dict.fromkeys(("mile", "mi", "milla"), ("meter", 1_609.344)),
    **dict.fromkeys(("g", "gram", "gramo"), ("gram", 1.0)),
    **dict.fromkeys(("kg", "kilo", "kilogram", "kilogramo"), ("gram", 1_000.0)),
    **dict.fromkeys(("byte", "bytes"), ("byte", 1.0)),
    **dict.fromkeys(("kb", "kilobyte"), ("byte", 1_000.0)),
    **dict.fromkeys(("mb", "megabyte"), ("byte", 1_000_000.0)),
}
"""Units of one dimension, and how many of its base unit each is."""
