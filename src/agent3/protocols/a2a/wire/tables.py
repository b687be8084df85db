"""The messages of A2A before 1.0, and the field numbers of the two generations that have protobuf.

A line is a message with its fields, and a field is written ``name MARK =NUMBER :TYPE >ATTRIBUTE``, of which everything
but the name may be missing:

* ``!`` marks a field that must be there, ``?`` one whose absence is not the same as being empty, ``+`` one that is also
  written when it is empty, and ``-`` one that is only read;
* the number is that of protobuf;
* the type is text unless it is given; ``*`` before it makes a list and ``%`` a map from texts;
* the attribute is that of ``wire.types``, where it is not just the name in snake case.

``wire.dialect`` turns tables into JSON codecs and ``grpc.protobuf`` into binary ones. The JSON of 1.0 needs no table,
because the structs of ``wire.types`` are its messages. Tests compare the numbers, and the marks of 1.0, with the
official descriptors.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["ERROR_DETAILS", "V01", "V03", "V03_PROTO", "V03_REST", "V10_PROTO", "Field", "parse"]


class Field(NamedTuple):
    """One field of a message; ``number`` is 0 in a table without protobuf."""

    name: str
    mark: str
    number: int
    form: str
    type: str
    attribute: str


_FIELD: Final = re.compile(r"(\w+)([!?+-]?)(?:=(\d+))?(?::([*%]?)(\w+))?(?:>(\w+))?")


def parse(table: str) -> dict[str, list[Field]]:
    """The fields of each message of a table."""
    messages: dict[str, list[Field]] = {}
    for line in table.strip().splitlines():
        message, *fields = line.split()
        messages[message] = []
        for text in fields:
            found = _FIELD.fullmatch(text)
            assert found is not None, f"{text!r} of {message} is not a field"
            name, mark, number, form, kind, attribute = found.groups("")
            snake = re.sub(r"(?=[A-Z])", "_", name).lower()
            messages[message].append(Field(name, mark, int(number or 0), form, kind or "text", attribute or snake))
    return messages


_REQUESTS: Final = """
GetTask id! historyLength:int metadata:object
CancelTask id! metadata:object
Subscribe id! metadata:object
"""

# Messages of 0.1 have no ids and artifacts have numbers; the codec fills in what is missing before they are read.
V01: Final = f"""
Part kind type text file:FilePart data:any metadata:object mimeType
FilePart name mimeType bytes:bytes uri
Message role!:Role parts!:*Part metadata:object messageId-
TaskStatus state!:TaskState message:Message timestamp:time
Artifact parts!:*Part name description index:index>artifact_id append:bool lastChunk:bool metadata:object
Task id! status!:TaskStatus sessionId>context_id artifacts:*Artifact history:*Message metadata:object
TaskStatusUpdateEvent id!>task_id status!:TaskStatus final+:bool sessionId->context_id metadata:object
TaskArtifactUpdateEvent id!>task_id artifact!:Artifact sessionId->context_id metadata:object
AuthenticationInfo schemes:*text credentials
PushNotificationConfig url! id token authentication:AuthenticationInfo
TaskPushNotificationConfig id! pushNotificationConfig!:PushNotificationConfig
SendMessageRequest id! message!:Message sessionId acceptedOutputModes:*text pushNotification:PushNotificationConfig \
historyLength:int metadata:object
GetPush id!>task_id
TaskPage tasks:*Task
{_REQUESTS.strip()}
"""

# 0.2 and 0.3 on JSON-RPC
V03: Final = f"""
Part kind type text file:FilePart data:any metadata:object mimeType
FilePart name mimeType bytes:bytes uri
Message role!:Role parts!:*Part messageId kind contextId taskId referenceTaskIds:*text extensions:*text metadata:object
TaskStatus state!:TaskState message:Message timestamp:time
Artifact artifactId! parts!:*Part name description extensions:*text metadata:object
Task id! status!:TaskStatus contextId+ kind artifacts:*Artifact history:*Message metadata:object
TaskStatusUpdateEvent taskId! status!:TaskStatus contextId+ kind final+:bool metadata:object
TaskArtifactUpdateEvent taskId! artifact!:Artifact contextId+ kind append:bool lastChunk:bool metadata:object
AuthenticationInfo schemes:*text credentials
PushNotificationConfig url! id token authentication:AuthenticationInfo
TaskPushNotificationConfig pushNotificationConfig!:PushNotificationConfig taskId id
SendMessageConfiguration acceptedOutputModes:*text blocking:bool historyLength:int \
pushNotificationConfig:PushNotificationConfig
SendMessageRequest message!:Message configuration:SendMessageConfiguration metadata:object
GetCard
GetPush id!>task_id pushNotificationConfigId>id
ListPush id!>task_id
DeletePush id!>task_id pushNotificationConfigId!>id
TaskPage tasks!:*Task nextPageToken+ pageSize+:int totalSize+:int
{_REQUESTS.strip()}
"""

_SECURITY: Final = """
StringList list=1:*text
SecurityScheme apiKeySecurityScheme=1:ApiKey httpAuthSecurityScheme=2:HttpAuth oauth2SecurityScheme=3:OAuth2 \
openIdConnectSecurityScheme=4:OpenId mtlsSecurityScheme=5:Mtls
ApiKey description=1 location!=2 name!=3
HttpAuth description=1 scheme!=2 bearerFormat=3
OAuth2 description=1 flows!=2:Flows oauth2MetadataUrl=3
OpenId description=1 openIdConnectUrl!=2
Mtls description=1
Flows authorizationCode=1:CodeFlow clientCredentials=2:TokenFlow implicit=3:ImplicitFlow password=4:PasswordFlow \
deviceCode=5:DeviceFlow
CodeFlow authorizationUrl!=1 tokenUrl!=2 refreshUrl=3 scopes!=4:%text pkceRequired=5:bool
TokenFlow tokenUrl!=1 refreshUrl=2 scopes!=3:%text
ImplicitFlow authorizationUrl=1 refreshUrl=2 scopes=3:%text
PasswordFlow tokenUrl=1 refreshUrl=2 scopes=3:%text
DeviceFlow deviceAuthorizationUrl!=1 tokenUrl!=2 refreshUrl=3 scopes!=4:%text
AgentProvider url!=1 organization!=2
AgentExtension uri=1 description=2 required=3:bool params=4:object
AgentCardSignature protected!=1 signature!=2 header=3:object
"""

# 0.3 in protobuf, package a2a.v1, for gRPC and as the JSON of REST. Requests that only name something share "Named".
V03_PROTO: Final = f"""
Part text=1 file=2:FilePart data=3:DataPart metadata=4:object
FilePart fileWithUri=1 fileWithBytes=2:bytes mimeType=3 name=4
DataPart data=1:object
Message messageId=1 contextId=2 taskId=3 role!=4:Role content=5:*Part>parts metadata=6:object extensions=7:*text
Artifact artifactId!=1 name=3 description=4 parts=5:*Part metadata=6:object extensions=7:*text
TaskStatus state!=1:TaskState message=2:Message timestamp=3:time
Task id!=1 contextId+=2 status!=3:TaskStatus artifacts=4:*Artifact history=5:*Message metadata=6:object
TaskStatusUpdateEvent taskId!=1 contextId+=2 status!=3:TaskStatus final=4:bool metadata=5:object
TaskArtifactUpdateEvent taskId!=1 contextId+=2 artifact!=3:Artifact append=4:bool lastChunk=5:bool metadata=6:object
AuthenticationInfo schemes=1:*text credentials=2
PushNotificationConfig id=1 url!=2 token=3 authentication=4:AuthenticationInfo
TaskPushNotificationConfig name=1 pushNotificationConfig!=2:PushNotificationConfig
SendMessageConfiguration acceptedOutputModes=1:*text pushNotification=2:PushNotificationConfig historyLength=3:int \
blocking=4:bool
SendMessageRequest message!=1:Message configuration=2:SendMessageConfiguration metadata=3:object
GetTaskRequest name!=1 historyLength=2:int
Named name!=1
CreateTaskPushNotificationConfigRequest parent!=1 configId=2 config=3:TaskPushNotificationConfig
ListTaskPushNotificationConfigRequest parent!=1 pageSize=2:int pageToken=3
ListTaskPushNotificationConfigResponse configs=1:*TaskPushNotificationConfig nextPageToken=2
StreamResponse task=1:Task message=2:Message statusUpdate=3:TaskStatusUpdateEvent \
artifactUpdate=4:TaskArtifactUpdateEvent
Empty
AgentInterface url=1 transport=2
AgentCapabilities streaming=1:bool pushNotifications=2:bool extensions=3:*AgentExtension
Security schemes=1:%StringList
AgentSkill id=1 name=2 description=3 tags=4:*text examples=5:*text inputModes=6:*text outputModes=7:*text \
security=8:*Security
AgentCard name=1 description=2 url=3 provider=4:AgentProvider version=5 documentationUrl=6 \
capabilities=7:AgentCapabilities securitySchemes=8:%SecurityScheme security=9:*Security defaultInputModes=10:*text \
defaultOutputModes=11:*text skills=12:*AgentSkill supportsAuthenticatedExtendedCard=13:bool preferredTransport=14 \
additionalInterfaces=15:*AgentInterface protocolVersion=16 signatures=17:*AgentCardSignature iconUrl=18
{_SECURITY.strip()}
"""
V03_REST: Final = f"{V03_PROTO}TaskPage tasks+:*Task nextPageToken+ pageSize+:int totalSize+:int"

# 1.0 in protobuf, package lf.a2a.v1. A reply to a message is written as a StreamResponse: the numbers are the same.
V10_PROTO: Final = f"""
Part text=1 raw=2:bytes url=3 data=4:any metadata=5:object filename=6 mediaType=7
Message messageId!=1 contextId=2 taskId=3 role!=4:Role parts!=5:*Part metadata=6:object extensions=7:*text \
referenceTaskIds=8:*text
Artifact artifactId!=1 name=2 description=3 parts!=4:*Part metadata=5:object extensions=6:*text
TaskStatus state!=1:TaskState message=2:Message timestamp=3:time
Task id!=1 contextId=2 status!=3:TaskStatus artifacts=4:*Artifact history=5:*Message metadata=6:object
TaskStatusUpdateEvent taskId!=1 contextId!=2 status!=3:TaskStatus metadata=4:object
TaskArtifactUpdateEvent taskId!=1 contextId!=2 artifact!=3:Artifact append=4:bool lastChunk=5:bool metadata=6:object
AuthenticationInfo scheme!=1 credentials=2
TaskPushNotificationConfig tenant=1 id=2 taskId=3 url!=4 token=5 authentication=6:AuthenticationInfo
SendMessageConfiguration acceptedOutputModes=1:*text taskPushNotificationConfig=2:TaskPushNotificationConfig \
historyLength?=3:int returnImmediately=4:bool
SendMessageRequest tenant=1 message!=2:Message configuration=3:SendMessageConfiguration metadata=4:object
GetTaskRequest tenant=1 id!=2 historyLength?=3:int
ListTasksRequest tenant=1 contextId=2 status=3:TaskState pageSize?=4:int pageToken=5 historyLength?=6:int \
statusTimestampAfter=7:time includeArtifacts?=8:bool
ListTasksResponse tasks!=1:*Task nextPageToken!=2 pageSize!=3:int totalSize!=4:int
CancelTaskRequest tenant=1 id!=2 metadata=3:object
SubscribeToTaskRequest tenant=1 id!=2
GetTaskPushNotificationConfigRequest tenant=1 taskId!=2 id!=3
ListTaskPushNotificationConfigsRequest taskId!=1 pageSize=2:int pageToken=3 tenant=4
ListTaskPushNotificationConfigsResponse configs=1:*TaskPushNotificationConfig nextPageToken=2
GetExtendedAgentCardRequest tenant=1
StreamResponse task=1:Task message=2:Message statusUpdate=3:TaskStatusUpdateEvent \
artifactUpdate=4:TaskArtifactUpdateEvent
Empty
AgentInterface url!=1 protocolBinding!=2 tenant=3 protocolVersion!=4
AgentCapabilities streaming?=1:bool pushNotifications?=2:bool extensions=3:*AgentExtension extendedAgentCard?=4:bool
SecurityRequirement schemes=1:%StringList
AgentSkill id!=1 name!=2 description!=3 tags!=4:*text examples=5:*text inputModes=6:*text outputModes=7:*text \
securityRequirements=8:*SecurityRequirement
AgentCard name!=1 description!=2 supportedInterfaces!=3:*AgentInterface provider=4:AgentProvider version!=5 \
documentationUrl?=6 capabilities!=7:AgentCapabilities securitySchemes=8:%SecurityScheme \
securityRequirements=9:*SecurityRequirement defaultInputModes!=10:*text defaultOutputModes!=11:*text \
skills!=12:*AgentSkill signatures=13:*AgentCardSignature iconUrl?=14
{_SECURITY.strip()}
"""

# google.rpc.Status and the details that we write and read
ERROR_DETAILS: Final = """
Status code=1:int message=2 details=3:*Any
Any typeUrl=1 value=2:bytes
ErrorInfo reason=1 domain=2 metadata=3:%text
BadRequest fieldViolations=1:*FieldViolation
FieldViolation field=1 description=2
RetryInfo retryDelay=1:Duration
Duration seconds=1:int nanos=2:int
"""
