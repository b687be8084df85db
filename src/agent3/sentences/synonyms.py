"""Which words mean the same to a tool, in English and Spanish. Each entry is one meaning; a word may have several.

Data only, for words that tools and the people who use them both know. Entries end with ``;`` or their line, and ``_``
joins the words of a phrase. The meaning of a word that is not here is the word itself.
"""

from __future__ import annotations

__all__ = ["CURRENCIES", "LANGUAGES", "MEANINGS", "PLACES", "UNITS"]

MEANINGS = """
send post publish tell notify announce write say message mail email deliver inform enviar mandar publicar
send escribir avisar decir notificar anunciar comunicar informar pasar
create add open file make put schedule register log note write plan block raise submit report draft prepare
create insert generate crear anadir agregar abrir hacer poner pon pones programar agendar apuntar anotar registrar
create meter redactar haz generar reportar guardar save store set_up
set change update adjust scale turn switch put leave make modify edit raise lower increase decrease reduce configure
set subir bajar poner pon pones dejar cambiar ajustar actualizar modificar fijar establecer aumentar reducir
set configurar escalar quedar mark marcar regulate regular
delete remove erase drop trash discard borrar eliminar quitar suprimir
clear empty clean vaciar limpiar despejar; reply responder contestar answer
stop halt kill shut terminate parar para detener deten apagar matar finalizar
move rename transfer relocate mover renombrar pasar trasladar
run execute launch trigger perform lanzar ejecutar correr hacer haz
read see view cat open show print display leer ver abrir mostrar contents contenido; before antes; after despues
current actual actualmente now ahora; read leer view see ver
write save store guardar almacenar escribir redactar apuntar anotar note jot compose put poner
move mover pasar trasladar relocate mueve mueva muevas; rename renombrar; copy copiar duplicate duplicar clone clonar
run execute ejecutar correr lanzar launch
stop halt parar detener deten apagar shut shutdown kill terminate para frenar finalizar
start begin iniciar arrancar comenzar empezar inicio empieza arranca; restart reiniciar reboot
turn switch
on encender enciende enciendas encienda encendido encendida prender prende activar activa enable enabled
off apagar apaga apague apagues apagado apagada desactivar desactiva disable disabled
save guardar store almacenar keep; load cargar; play reproducir poner pon put escuchar listen; pause pausar
open abrir abre abran abierto abierta; close cerrar cierra cierre; closed cerrado cerrada; lock bloquear
convert convertir convierte change cambiar cambio exchange pasar worth equivalen equivale son
translate traducir traduce traduzca say decir dice dicen; calculate compute calcular evaluate
add sum sumar suma plus mas; multiply multiplicar times por; divide dividir; subtract restar resta minus menos
count contar cuenta; sort order ordenar ordena sorted ordenado; filter filtrar; resize redimensionar redimensiona
rotate rotar; crop recortar; compress comprimir; extract extraer extrae; merge fusionar fusiona unir combine combinar
split dividir divide; schedule programar programa agendar agenda plan planificar
remind reminder recordar recuerda recuerdame recordatorio aviso avisar alert
notify avisar avisa notificar notifica tell announce; post publish publicar publica publiques write escribir
send mail email enviar mandar mandame envia deliver write escribir; email mail correo; sms text
invite invitar invita attendee attendees guest invitado asistente participant participante
assign asignar assignee assignees assigned asignado asignada
label labels tag etiqueta etiquetado labelled labeled tagged
fetch get grab pull retrieve obtener traer bajar download descargar descarga page web website site pagina
resolve resolver; lookup look_up consultar consulta; query consulta consultar sql; database base_de_datos bd db
table tabla; column columna; row fila; record registro registros entry entries entrada
folder directory directorio carpeta dir path ruta; file fichero archivo document documento filename path ruta
path ruta file folder; content contents contenido body text texto
text texto phrase frase message mensaje words palabras content
body cuerpo text texto message mensaje content contenido; message mensaje text texto body; subject asunto
title titulo titulado titulada titled heading summary nombre name llamado called; summary resumen title titulo name
name nombre named called llamado llamada titled; description descripcion describe concept concepto
comment comentario comentar; note nota
task tarea todo to_do pendiente quehacer reminder remind recordar recuerda apuntar; list lista listar
calendar calendario agenda; event evento meeting reunion cita appointment; project proyecto; team equipo
repository repositorio repo; owner dueno propietario organization organizacion org usuario user; branch rama
commit confirmar confirmacion; issue incidencia ticket bug problema report; pull_request pr; file_an_issue report
release version; user usuario account cuenta username; customer cliente client
invoice factura facturar bill billing cobrar; payment pago; refund reembolso reembolsar devolver
amount importe cantidad total sum suma monto; price precio coste cost; currency moneda divisa; quantity cantidad
due vencimiento vence deadline plazo limite expire; date fecha day dia; time hora
start inicio comienzo begin desde from; end fin final until hasta; duration duracion
location lugar ubicacion place sitio where donde; city ciudad town; country pais; address direccion
room habitacion cuarto sala; living_room salon sala_de_estar livingroom lounge; kitchen cocina
bedroom dormitorio habitacion alcoba; bathroom bano aseo; office oficina despacho; garage garaje; garden jardin
light luz lamp lampara; brightness brillo intensidad; temperature temperatura; color colour; color color_de
volume volumen; white blanco blanca; black negro negra; red rojo roja; green verde; blue azul
yellow amarillo amarilla; orange naranja; purple morado violeta; pink rosa
weather tiempo clima forecast pronostico rain raining rains lluvia llueve llover lloviendo snow snowing nieve nieva
weather temperature temperatura warm cold frio calor sunny sol wind viento hot hace conditions
forecast pronostico prevision; package parcel paquete shipment envio order pedido
track tracking seguimiento rastrear rastreo seguir llegado arrived where donde status; carrier transportista
status estado state; news noticias; flight flights vuelo volar fly flying; origin origen salida departure
destination destino llegada arrival; departure salida ida; return vuelta regreso back returning volviendo
passenger pasajero traveler traveller person people persona adult adulto viajero; adult adulto person people persona
child nino children kid ninos; night noche; guest huesped person people persona comensal; cabin clase class cabina
economy turista economica; business ejecutiva negocios; first primera
direct directo directa nonstop non-stop sin_escalas; stop escala; hotel alojamiento; restaurant restaurante
replica replicas instance instancia copy copies; scale escalar escala subir sube bajar baja leave dejar deja
deployment despliegue; container contenedor; image imagen picture photo foto; service servicio; server servidor
namespace espacio_de_nombres; node nodo entity entities entidad; memory memoria remember recuerdas know sabes
graph grafo; entity entidad; knowledge conocimiento
search buscar busqueda find encontrar look search_for mention mentions mencionan relacionado related; channel canal
thread hilo; reaction reaccion emoji; recipient destinatario to; cc copia con_copia copied; bcc copia_oculta
priority prioridad importance importancia; importance importancia priority prioridad; low bajo baja; normal normal
medium media medio mediano; high alto alta elevada; urgent urgente; critical critico critica; language idioma lengua
code codigo; domain dominio; dns nameserver resolve; ns name_servers nameservers servidores_de_nombres; aaaa ipv6
mx mail_servers servidores_de_correo; url enlace link address direccion page pagina
character caracter caracteres characters char; index indice position posicion; length longitud size tamano
limit limite maximum max maximo tope; page pagina; raw crudo html tal_cual as_is sin_simplificar; result resultado
results resultados; recursive recursivo recursivamente recursively subfolders subcarpetas; hidden oculto ocultos
draft borrador; private privado privada; public publico publica; all todo todos todas every everything
asc ascending ascendente; desc descending descendente; newest latest recent recientes reciente nuevo nuevos
oldest antiguo antiguos; driving drive car by_car coche en_coche conducir conduciendo
walking walk on_foot foot a_pie andando caminando; bicycling cycling bike bicycle bici bicicleta en_bici
transit public_transport bus metro transporte_publico autobus tren; metric celsius metrico; imperial fahrenheit
daily diario diaria every_day; weekly semanal every_week; monthly mensual every_month; yearly anual annual every_year
json; csv; pdf; yes si; monday lunes; tuesday martes; wednesday miercoles; thursday jueves; friday viernes
saturday sabado; sunday domingo; password contrasena clave; key clave; value valor; phone telefono; contact contacto
book libro; author autor; movie film pelicula; song cancion; artist artista; album disco
playlist lista_de_reproduccion; video; recipe receta; ingredient ingrediente; health salud
stock accion acciones share; company empresa; ticker simbolo symbol; crypto cripto; map mapa
route ruta camino directions indicaciones way; distance distancia far lejos; radius radio; near cerca
car coche carro auto; train tren; ticket billete boleto; seat asiento; table mesa
reservation reserva booking reservar book; cancel cancelar anular; delete borrar eliminar remove quitar erase drop
create crear make hacer haz generar generate open abrir file
update actualizar modificar change cambiar edit editar set; insert insertar; append anadir agregar
add anadir agregar poner put meter incluir include apuntar create; upload subir; share compartir; export exportar
import importar; print imprimir; test probar prueba; build compilar construir; deploy desplegar; install instalar
random aleatorio azar; roll tirar lanzar; dice dado dados; generate generar; question pregunta ask preguntar
answer respuesta responder; job trabajo; employee empleado; student alumno estudiante; course curso; class clase
grade nota; month mes; year ano; week semana; hour hora; minute minuto; second segundo; water agua; music musica
game juego; score puntuacion; level nivel; group grupo; member miembro; role rol; permission permiso; cluster; pod
transfer transferir enviar send pasar; listing alojamiento place stay accommodation
schema esquema column columna structure estructura; coordinate coordenada geocode; log logs registro; error fallo
metric metrica; alert alerta; threshold umbral; cron; timezone zona_horaria huso time_zone
request ask apply petition pedir pide solicitar solicitud peticion; rent hire lease alquilar alquiler rentar arrendar
rent alquiler; lend loan prestar prestamo; draw paint sketch render generate image dibujar pintar ilustrar
log record track register enter registrar apuntar anotar registro
register sign_up enroll enrol registrar inscribir inscripcion matricular; subscribe subscription suscribir suscripcion
unsubscribe baja desuscribir; renew renovar renovacion renewal
expire expiry expiration expires expirar caducar caducidad vencer vencimiento caduque
activate enable turn_on activar habilitar encender encienda
deactivate disable turn_off desactivar deshabilitar apagar; archive archived archivar archivo archivado
unarchive restore desarchivar restaurar; restore recover recuperar restaurar
backup respaldo respaldar copia_de_seguridad; approve approval aprobar aprobacion accept aceptar
reject decline deny rechazar denegar; confirm confirmation confirmar confirmacion
submit send file presentar enviar entregar; review revisar revision revise; comment remark comentario comentar
mention mencionar mencion hablar tratar; link connect enlazar vincular conectar
attach attachment adjuntar adjunto anexar; join unir unirse juntar; leave salir abandonar; follow seguir
watch mirar ver vigilar; monitor vigilar monitorizar supervisar; measure medir medida measurement; weigh pesar
weight peso; estimate estimar estimacion; predict prediction predecir prediccion
analyze analyse analysis analizar analisis; classify classification clasificar clasificacion
detect detectar deteccion; recognize reconocer; summarize summarise summary resumir resumen
explain explicar explicacion; describe describir descripcion; compare comparar comparacion
choose select pick elegir escoger seleccionar seleccion; validate validar; verify check verificar comprobar
scan escanear; encrypt cifrar encriptar; decrypt descifrar; encode codificar; decode decodificar
format formato formatear; parse analizar; clean limpiar; empty vaciar vacio; fill rellenar llenar
replace sustituir reemplazar; swap exchange intercambiar; duplicate duplicar duplicado copy
sync synchronize sincronizar; refresh refrescar actualizar; reload recargar; reset restablecer reiniciar
undo deshacer; redo rehacer; skip saltar omitir; pause pausar pausa; resume reanudar continuar
continue continuar seguir; repeat repetir repeticion recurring
finish complete end terminar acabar completar finalizar
complete completed done completar completado terminado hecho finished; begin start empezar comenzar; wake despertar
ring sonar call; call llamar llamada phone telefonear; contact contactar contacto; visit visitar visita
travel trip viaje viajar; stay estancia alojarse; arrive llegar llegada arrival; depart leave salir salida departure
pickup pick collect collection recoger recogida; dropoff drop_off entrega devolucion
return devolver devolucion volver vuelta regreso; deliver delivery entregar entrega reparto enviar
ship shipping shipment envio enviar; cook cocinar; eat comer; drink beber bebida; sleep dormir sueno; wash lavar
charge cobrar cargar cargo; spend spent gastar gasto; expense spending gasto gastos expenditure; earn ganar ingreso
income ingreso ingresos revenue; save ahorrar ahorro savings; invest invertir inversion investment
withdraw withdrawal retirar; deposit depositar deposito ingresar; donate donation donar donacion; tip propina
tax taxes impuesto impuestos iva vat; discount descuento rebaja off; coupon cupon voucher vale
promotion promocion promo; sale venta; sell vender venta; order pedido orden encargo; purchase compra comprar buy
cart carrito cesta basket; shop store tienda comercio; market mercado; supplier vendor proveedor; warehouse almacen
inventory stock inventario existencias; barcode codigo_de_barras; receipt recibo; budget presupuesto; bank banco
account cuenta; balance saldo; card tarjeta; loan prestamo credit; credit credito; debit debito; insurance seguro
contract contrato; policy poliza politica; claim reclamacion siniestro; quote presupuesto cotizacion cotizar
salary sueldo salario; bonus prima; employee empleado worker trabajador staff
manager jefe gerente responsable encargado; boss jefe; colleague companero; candidate candidato; interview entrevista
vacation holiday leave vacaciones time_off dias_libres; vacation off time vacaciones libres libre; shift turno
absence ausencia; department departamento; position puesto cargo; hire contratar contratacion; fire despedir
training formacion entrenamiento; workout exercise entrenamiento ejercicio training; exercise ejercicio
activity actividad; run running correr carrera jog jogging; running correr carrera run
walk walking caminar caminata andar paseo; swim swimming nadar natacion; swimming nadar natacion swim
cycle cycling ciclismo bici bicicleta bike biking; cycling ciclismo bici bicicleta bike; hike hiking senderismo
gym gimnasio; weightlifting pesas strength fuerza; calorie caloria calorias; protein proteina; diet dieta
food comida alimento alimentacion meal; meal comida plato; breakfast desayuno; lunch almuerzo comida
dinner cena supper; snack merienda; dish plato; cuisine cocina gastronomia; vegetarian vegetariano vegetariana
vegan vegano vegana; gluten_free sin_gluten; dairy_free sin_lactosa lactose_free; spicy picante; sweet dulce; salt sal
sugar azucar; oil aceite; bread pan; milk leche; egg huevo; cheese queso; meat carne; fish pescado; rice arroz
fruit fruta; vegetable verdura; coffee cafe; tea te; wine vino; beer cerveza; bottle botella
serving ration racion porcion; doctor medico; patient paciente; symptom sintoma
medicine medication medicina medicamento drug; dose dosis; pharmacy farmacia; clinic clinica; dentist dentista
disease illness enfermedad; pain dolor; blood sangre; pressure presion tension; heart corazon; pulse pulso
mood animo humor; happy feliz contento; sad triste; air aire; quality calidad
pollution contaminacion pollutant contaminante; humidity humedad; pressure presion; sunrise amanecer; sunset atardecer
moon luna; sun sol; sea mar; beach playa; mountain montana; river rio; lake lago; island isla; forest bosque
plant planta; tree arbol; flower flor; dog perro; cat gato; bird pajaro; horse caballo; house home casa hogar
home casa hogar house; apartment flat piso apartamento; building edificio; floor piso planta; door puerta
window ventana; wall pared; roof techo tejado; bed cama; chair silla; lamp lampara; tv television tele
fridge nevera frigorifico; oven horno; washing_machine lavadora; dishwasher lavavajillas; vacuum aspiradora
blind blinds persiana persianas shutter; curtain cortina; thermostat termostato; heating calefaccion heater heat
heat calor calentar heating calefaccion; cool frio enfriar cooling refrigeracion
air_conditioning aire_acondicionado ac; fan ventilador; alarm alarma despertador; camera camara; speaker altavoz
microphone microfono; device dispositivo aparato; battery bateria pila; plug enchufe; switch interruptor; scene escena
automation automatizacion; degree degrees grado grados; heat heating calor calefaccion
auto automatic automatico automatica; mode modo; speed velocidad; power potencia energia; energy energia
consumption consumo usage; usage use uso; width wide ancho anchura; height tall high alto altura
length long largo longitud; depth deep profundidad hondo; size tamano talla; area superficie
ratio proporcion relacion; aspect aspecto; keep maintain preserve mantener conservar; resolution resolucion
pixel pixeles; contrast contraste; background fondo; shape forma; circle circulo; square cuadrado; line linea
point punto; style estilo; theme tema; font fuente; bold negrita; italic cursiva
screenshot capture captura pantallazo; screen pantalla display; button boton; click pulsar clic hacer_clic press
press pulsar presionar apretar; scroll desplazar; tab pestana; browser navegador; bookmark marcador favorito
favorite favourite favorito favoritos; website site sitio web pagina; form formulario; field campo; element elemento
checkbox casilla; keyboard teclado; key tecla; mouse raton; paste pegar; cut cortar; trim recortar
photo picture foto fotografia image; picture photo imagen foto; drawing dibujo; painting pintura cuadro; sound sonido
voice voz; song track cancion tema; track cancion pista; artist singer artista cantante; genre genero
concert concierto; series serie show; episode episodio capitulo; season temporada estacion; chapter capitulo
actor actriz actress; playlist lista; subtitle subtitulo; game partida partido juego match; match partido
player jugador; league liga; tournament torneo; score resultado puntuacion marcador; goal gol objetivo; win ganar
lose perder; sport deporte; football soccer futbol; basketball baloncesto; tennis tenis; race carrera
author autor autora writer escritor; publisher editorial; publish publication published publicar publicacion publicado
edition edicion; library biblioteca; newspaper periodico; magazine revista; headline titular; article articulo paper
paper articulo article; journal revista; study estudio; research investigacion; science ciencia; thesis tesis
abstract resumen; citation cita citas; reference referencia; keyword palabra_clave keywords
topic subject theme tema asunto about; subject asunto materia tema; teacher profesor maestro; school escuela colegio
university universidad; course curso asignatura; lesson leccion clase; exam test examen; homework deberes
grade nota calificacion; degree titulo; word palabra; sentence frase oracion; paragraph parrafo; letter carta letra
synonym sinonimo; definition definicion define definir meaning significado; grammar gramatica; spelling ortografia
dictionary diccionario; translation traduccion; pronunciation pronunciacion; number numero; digit cifra digito
integer entero; fraction fraccion; percent percentage porcentaje por_ciento pct; average mean media promedio
sum suma total; difference diferencia; square_root raiz_cuadrada; root raiz; equation ecuacion; function funcion
matrix matriz; graph chart grafico grafica; bar barra barras; pie tarta circular; axis eje; label tag etiqueta rotulo
caption leyenda; legend leyenda; report informe reporte; dashboard panel tablero
statistic stats estadistica estadisticas; chart grafico; spreadsheet hoja_de_calculo; sheet hoja; cell celda
range rango intervalo; interval intervalo; filter filtro filtrar; order orden; ascending ascendente
descending descendente; relevance relevancia; popularity popularidad popular
rating valoracion puntuacion calificacion; star estrella; review resena opinion critica; feedback comentarios
survey encuesta; vote voto votar; poll encuesta sondeo; reason motivo razon causa; cause causa
purpose proposito objetivo; goal objetivo meta target; target objetivo meta; deadline plazo; milestone hito
board tablero; epic epica; story historia; bug fallo error; feature funcionalidad; release lanzamiento publicacion
build compilacion; deploy deployment desplegar despliegue; environment entorno ambiente env
production produccion prod; staging preproduccion; development desarrollo dev; test prueba pruebas testing
application app aplicacion; app aplicacion application; program programa; process proceso; host anfitrion; port puerto
network red; firewall cortafuegos; traffic trafico; load carga; latency latencia; request peticion; response respuesta
timeout tiempo_de_espera; header cabecera; session sesion; secret secreto; certificate certificado; access acceso
admin administrator administrador administradora; viewer lector; guest invitado; username nombre_de_usuario
profile perfil; nickname apodo; first_name nombre nombre_de_pila; last_name surname apellido apellidos family_name
surname apellido apellidos last_name; full_name nombre_completo; age edad; gender sexo genero
birthday birthdate cumpleanos nacimiento birth; nationality nacionalidad; passport pasaporte; driver conductor
license licencia permiso carnet; plate matricula; vehicle vehiculo; van furgoneta; truck camion
motorcycle moto motocicleta; bus autobus; plane avion; boat ship barco; airport aeropuerto; station estacion
stop parada; platform anden; gate puerta; luggage baggage equipaje maleta; bag bolsa maleta; fare tarifa
luxury lujo premium; compact compacto; economy economico economica; family familiar; single individual; double doble
pool piscina; parking aparcamiento estacionamiento; pet mascota; view vista vistas; balcony balcon
availability available disponibilidad disponible; check_in entrada; check_out salida; street calle; avenue avenida
neighborhood barrio; district distrito; postal zip postcode codigo_postal; postal_code zip codigo_postal postcode
zip postal; region comunidad; province provincia; state estado provincia; continent continente; population poblacion
north norte; south sur; east este; west oeste; latitude latitud; longitude longitud; altitude altitud
coordinates coordenadas; nearby near around cerca cercano alrededor; radius radio around; inside dentro; outside fuera
free libre gratis gratuito; busy ocupado; available disponible; active activo activa; inactive inactivo inactiva
pending pendiente; solved resolved resuelto resuelta solucionado; progress curso progreso
cancelled canceled cancelado cancelada; paid pagado pagada; unpaid impagado impagada
overdue vencido vencida atrasado atrasada; sent enviado enviada; delivered entregado entregada; shipped enviado
failed fallido fallida; success exito; unread no_leido no_leidos; read leido; starred destacado destacados
important importante; inbox bandeja_de_entrada; trash papelera; attachment adjunto; signature firma
template plantilla; newsletter boletin; campaign campana; audience audiencia publico; lead cliente_potencial
deal oportunidad negocio trato; opportunity oportunidad; stage etapa fase; phase fase; pipeline embudo
company empresa compania; partner socio; industry sector industria; website web; notification notificacion
reminder recordatorio; alert alerta aviso; appointment cita; meeting reunion; conference conferencia congreso
party fiesta; wedding boda; birthday cumpleanos; holiday festivo vacaciones; duration duracion length
daily diario diaria diariamente; weekly semanal semanalmente; monthly mensual mensualmente; yearly anual anualmente
once una_vez; forever siempre para_siempre; always siempre; recurring recurrente periodico; morning manana
afternoon tarde; evening tarde noche; noon mediodia; midnight medianoche; weekend fin_de_semana; mon monday lunes
tue tuesday martes; wed wednesday miercoles; thu thursday jueves; fri friday viernes; sat saturday sabado
sun sunday domingo; january enero; february febrero; march marzo; april abril; june junio; july julio; august agosto
september septiembre; october octubre; november noviembre; december diciembre; spring primavera; summer verano
autumn fall otono; winter invierno; past pasado; future futuro; history historial historia
recent reciente recientes ultimo ultimos latest; latest last ultimo ultima ultimos ultimas recent newest
previous anterior; next siguiente proximo; first primero primera; minimum minimo minima min; maximum maximo maxima max
more mas; less menos; big large grande; small pequeno pequena; long largo larga; short corto corta breve
fast quick rapido rapida; slow lento lenta; easy facil; hard difficult dificil; medium medio media intermedio
beginner principiante; advanced avanzado avanzada; hot caliente; cold frio fria; warm calido calida
dark oscuro oscura; light claro clara; bright brillante; gray grey gris; brown marron; gold dorado oro
silver plateado plata; vivid vivo intenso; informal casual; friendly amistoso amigable; professional profesional
funny divertido gracioso; serious serio seria; tone tono formality formalidad register; male hombre masculino man
female mujer femenino woman; new nuevo nueva; used usado usada second_hand; old viejo antiguo; good bueno buena
bad malo mala; cheap barato barata; expensive caro cara; partial parcial; full completo completa
entire whole entero entera; single unico unica; multiple varios varias; other otro otra; same mismo misma
different distinto diferente; entertainment leisure ocio entretenimiento diversion; travel viaje viajes
transport transportation transporte; clothes clothing ropa; shirt camisa camiseta; shoe zapato; dress vestido
jewelry joyas; furniture muebles mueble; electronics electronica; toy juguete; tool herramienta; gift regalo
beauty belleza; education educacion; utilities suministros; other otros; merchant shop comercio tienda vendor
symbol ticker simbolo; quote price trade cotizar cotiza cotizacion; share stock accion acciones; market bolsa
exchange bolsa; crypto coin criptomoneda; portfolio cartera; fund fondo funds money dinero; money dinero fondos funds
transaction transaccion movimiento; transfer transferencia transferir; memo note concepto nota; concept concepto memo
recipient beneficiary beneficiario destinatario; sender remitente; source origen fuente; time vez veces
redeem redemption redemptions use canjear usar canje; use using usar utilizar; invite invitation invitar invitacion
send envio; force forzar forzado forced; dry_run simulacro simulation simulate simular; simulate simular simulacion
verbose detallado; quiet silencioso silent; visibility visibilidad; internal interno interna; external externo externa
default predeterminado defecto; custom personalizado; symbol symbols simbolo simbolos
uppercase mayuscula mayusculas capital; lowercase minuscula minusculas; space espacio; emoji emoticono
reaction reaccion react reaccionar; reply respuesta responder; mention mencion; quote cita citar
conversation conversacion; zone zona; instance instancia; machine maquina; disk disco; cpu procesador
snapshot instantanea; bucket cubo; object objeto; queue cola; topic tema; job trabajo tarea
schedule horario programacion calendar; workflow flujo; step paso; agent agente; ticket incidencia tique
assignee responsable asignado; severity gravedad; category categoria type tipo kind; type tipo kind clase; kind tipo
tag etiqueta; item articulo elemento producto; collection coleccion; set conjunto; unit unidad; model modelo
brand marca; part pieza parte; capacity capacidad; serial serie; identifier identificador id; detail detalle
option opcion; parameter parametro; setting ajuste configuracion preference preferencia; rule regla norma
condition condicion; rank rango puesto; goal objetivo; todo tarea; problem problema; solution solucion
warning advertencia; info informacion information; data datos; document documento; copy copia; link enlace
phone telefono mobile movil; mobile movil celular; mail correo; pickup pick_up; dropoff drop_off
checkin check_in checking_in check-in entrada llegada; checkout check_out checking_out check-out salida
time tiempo duration tardar durar; adjust ajustar adjusted ajustado
history historical past historial historico historicos historica historicas; period periodo plazo range
best top mejor mejores popular votado votada; post publicacion entrada; screenshot pantalla
delete wipe purge erase; log imputar clock; due vencer venza vence caducar deadline; context contexto
theme tema; internet web online red; pet mascota dog cat perro gato; store guardar save put almacenar
append add anadir agregar write escribir apuntar put insert; insert insertar add anadir agregar meter
source origin origen; payee beneficiario beneficiary recipient; flag bandera; color colour; mapping mapeo
command comando orden; document documento file; spreadsheet documento hoja_de_calculo; send dile diles digale say
record registrar apuntar anotar; raw bruto; give dar darme; timer countdown temporizador cronometro; mortgage hipoteca
tweet tuit tuitear; block ban bloquear vetar; unblock desbloquear; horror terror miedo; comedy comedia; action accion
thriller suspense; romance romantico romantica; sci-fi ciencia_ficcion; rate tasa tipo ratio; interest interes
loan prestamo credito; principal capital; payment pago cuota; rating nota puntuacion valoracion; company empresa works
light luz bombilla luces; effective efectivo; subscription suscripcion; username usuario login
warehouse almacen deposito; seat plaza asiento; webhook gancho; trigger disparador; merge fusionar fusion
push empujar; pull traer; clone clonar; diff diferencia; patch parche; reviewer revisor; unpublish despublicar
heading encabezado titulo; slide diapositiva; presentation presentacion; sign firmar; printer impresora; ink tinta
subfolder subcarpeta; shared compartido; quota cuota; storage almacenamiento; vendor proveedor; statement extracto
transaction transaccion operacion; deposit ingreso; withdrawal retirada; fee comision; exchange cambio; rate cambio
dividend dividendo; buy comprar; trade operar operacion; alert alerta avisar; prescription receta; allergy alergia
vaccine vacuna; temperature fiebre temperatura; height estatura altura; step paso pasos; calories calorias
serving racion raciones porciones; chicken pollo; beef ternera; pork cerdo; salad ensalada; soup sopa
cake tarta pastel; lemon limon; tomato tomate; potato patata; onion cebolla; garlic ajo; apple manzana; banana platano
strawberry fresa; juice zumo jugo; wood madera; plastic plastico; paper papel; glass vidrio cristal; stone piedra
cotton algodon; leather cuero piel; trousers pants pantalon; jacket chaqueta; coat abrigo; hat sombrero; glove guante
watch reloj; ring anillo; bag bolso bolsa; umbrella paraguas; laptop portatil; computer ordenador computadora
tablet tableta; headphones auriculares; charger cargador; drone dron; lock cerradura; key llave; fence valla
lawn cesped; sprinkler riego aspersor; water regar; feed alimentar; trip viaje; itinerary itinerario; hostel albergue
airline aerolinea; visa visado; tour visita excursion; museum museo; guide guia; ticket entrada billete
theater teatro; cinema cine; show espectaculo; exhibition exposicion; stadium estadio; coach entrenador
scholarship beca; job empleo trabajo; resume curriculum; offer oferta; attendance asistencia; payroll nomina; law ley
court juzgado tribunal; lawyer abogado; judge juez; case caso; crime delito; police policia; fire fuego incendio
emergency emergencia; rain lluvia; snow nieve; wind viento; storm tormenta; cloud nube; fog niebla; ice hielo
earthquake terremoto; flood inundacion; planet planeta; rocket cohete; satellite satelite; oil petroleo
electricity electricidad luz; engine motor; wheel rueda; tire neumatico; fuel combustible gasolina; road carretera
bridge puente; tunnel tunel; compass brujula; mute silenciar; kick expulsar echar; pin fijar anclar; react reaccionar
like gustar; upvote votar; report denunciar reportar; sort ordenar ordenado ordenada ordenados ordenadas sorted order
group agrupar grouped; sum sumar; count contar recuento; round redondear; angle angulo; anniversary aniversario
baby bebe; child hijo nino; parent padre madre; brother hermano; sister hermana; friend amigo amiga; neighbor vecino
snooze posponer aplazar postpone; postpone aplazar posponer retrasar reschedule; reschedule reprogramar cambiar mover
advance adelantar; extend prolongar ampliar extender; shorten acortar; download descargar; rollback revertir
revert revertir deshacer; reboot reiniciar; enable activar habilitar; disable desactivar deshabilitar
schedule convocar convoca organizar organiza arrange set_up concertar fijar
meeting call videollamada videoconferencia llamada; issue error errors errores fallo fallos crash exception
price worth cost costs cuesta cuestan vale valor cotizacion trading cotiza cotizando
weather umbrella paraguas cold hot warm abrigo lluvioso nublado cloudy soleado
firstname first_name nombre nombre_de_pila given_name; lastname last_name surname apellido apellidos family_name
download bajar bajate descargar get; once un_solo_uso single_use one_time una_sola_vez
repeating recurrente varias_veces recurring; complete mark tick marcar marca; timer wake temporizador cronometro alarm
inventory existencias stock; create armar montar arma monta prepara preparar
send mandale enviale escribele dile pasale hazle; search averigua averiguar rastrea googlea
delete cargate elimina tira tirar deshacer; navigate go visit browse open ir ve vaya vete navegar acceder
fill type enter input write rellenar escribir teclear introducir; playback music musica song track audio reproduccion
log history historial registro; message conversation said dicho conversacion; hallway pasillo corridor
dining_room comedor; side sides cara caras lado lados; above over por_encima_de encima
below under por_debajo_de debajo; meal meals comida comidas; space plaza espacio sitio
weather meteorologico meteorologica meteorologicos meteorologicas; body descripcion description detalle detalles
order pedir encargar solicitar; porch porche; desk escritorio; ceiling techo; stairs staircase escalera escaleras
basement cellar sotano; attic atico; terrace terraza; heater calefactor radiator radiador
in_progress en_curso en_progreso en_proceso; never nunca; cool fresco fresca; cash efectivo; standard estandar
subway metro underground; one_way solo_ida ida; round_trip ida_y_vuelta; left izquierda; right derecha
newest most_recent mas_reciente mas_recientes mas_nuevo mas_nuevos; oldest mas_antiguo mas_antiguos mas_viejo
cheapest mas_barato mas_baratos mas_barata mas_baratas; classical clasica clasico; politics politica
technology tecnologia tech; detailed detallado detallada; sick enfermo enferma; remote remoto remota; work trabajo
damaged danado danada broken; lost perdido perdida; defective defectuoso defectuosa faulty
fraud fraude fraudulent fraudulento; dry seco seca; away ausente; merge une unes; transition transicion; read lectura
write escritura; pay settle pagar abonar pague; savings ahorro ahorros; checking corriente
hold on_hold en_espera espera; toll tolls peaje peajes; raise increase subir aumentar incrementar
lower decrease reduce bajar reducir disminuir
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
    **dict.fromkeys(("month", "mes", "meses"), ("month", 1.0)),
    **dict.fromkeys(("year", "ano"), ("month", 12.0)),
    **dict.fromkeys(("mm", "millimeter", "milimetro"), ("meter", 0.001)),
    **dict.fromkeys(("cm", "centimeter", "centimetro"), ("meter", 0.01)),
    **dict.fromkeys(("m", "meter", "metre", "metro"), ("meter", 1.0)),
    **dict.fromkeys(("km", "kilometer", "kilometre", "kilometro"), ("meter", 1_000.0)),
    **dict.fromkeys(("mile", "mi", "milla"), ("meter", 1_609.344)),
    **dict.fromkeys(("g", "gram", "gramo"), ("gram", 1.0)),
    **dict.fromkeys(("kg", "kilo", "kilogram", "kilogramo"), ("gram", 1_000.0)),
    **dict.fromkeys(("tonne", "tonelada"), ("gram", 1_000_000.0)),
    **dict.fromkeys(("lb", "lbs"), ("gram", 453.59237)),
    **dict.fromkeys(("oz", "ounce", "onza"), ("gram", 28.349523125)),
    **dict.fromkeys(("ft", "foot", "feet"), ("meter", 0.3048)),
    **dict.fromkeys(("yd", "yard", "yarda"), ("meter", 0.9144)),
    **dict.fromkeys(("ml", "milliliter", "millilitre", "mililitro"), ("liter", 0.001)),
    **dict.fromkeys(("cl", "centiliter", "centilitre", "centilitro"), ("liter", 0.01)),
    **dict.fromkeys(("liter", "litre", "litro"), ("liter", 1.0)),
    **dict.fromkeys(("w", "watt", "vatio"), ("watt", 1.0)),
    **dict.fromkeys(("kw", "kilowatt", "kilovatio"), ("watt", 1_000.0)),
    **dict.fromkeys(("kwh",), ("watt hour", 1_000.0)),
    **dict.fromkeys(("v", "volt", "voltio"), ("volt", 1.0)),
    **dict.fromkeys(("bar", "bares"), ("bar", 1.0)),
    **dict.fromkeys(("hectare", "hectarea", "ha"), ("square meter", 10_000.0)),
    **dict.fromkeys(("byte", "bytes"), ("byte", 1.0)),
    **dict.fromkeys(("kb", "kilobyte"), ("byte", 1_000.0)),
    **dict.fromkeys(("mb", "megabyte"), ("byte", 1_000_000.0)),
    **dict.fromkeys(("gb", "gigabyte"), ("byte", 1_000_000_000.0)),
    **dict.fromkeys(("%", "percent", "percentage", "pct", "porcentaje"), ("percent", 1.0)),
    **dict.fromkeys(("pixel", "px", "pixeles"), ("pixel", 1.0)),
    **dict.fromkeys(("degree", "grado", "celsius", "°c"), ("degree", 1.0)),
}
"""Units of one dimension, and how many of its base unit each is."""
