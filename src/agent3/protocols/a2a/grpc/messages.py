"""The messages of A2A over gRPC: which number each field has in 1.0, in 0.3, and in Google's details of errors.

Fields have their names in JSON. ``!`` marks what our readers want to see also where protobuf, which does not write
what is empty, left it out.
"""

from __future__ import annotations

from typing import Final

from agent3.protocols.a2a.grpc.protobuf import Schema

__all__ = ["STATUS", "V03", "V10"]

_STATES: Final = ("UNSPECIFIED SUBMITTED WORKING COMPLETED FAILED {} INPUT_REQUIRED REJECTED AUTH_REQUIRED").split()
_ROLES: Final = {"ROLE_UNSPECIFIED": 0, "ROLE_USER": 1, "ROLE_AGENT": 2}


def _states(canceled: str) -> dict[str, int]:
    return {f"TASK_STATE_{word.format(canceled)}": number for number, word in enumerate(_STATES)}


_SECURITY: Final = """
StringList list=1:*text
SecurityScheme apiKeySecurityScheme=1:ApiKey httpAuthSecurityScheme=2:HttpAuth oauth2SecurityScheme=3:OAuth2 \
openIdConnectSecurityScheme=4:OpenId mtlsSecurityScheme=5:Mtls
ApiKey description=1 location=2 name=3
HttpAuth description=1 scheme=2 bearerFormat=3
OAuth2 description=1 flows=2:Flows oauth2MetadataUrl=3
OpenId description=1 openIdConnectUrl=2
Mtls description=1
Flows authorizationCode=1:CodeFlow clientCredentials=2:TokenFlow implicit=3:ImplicitFlow password=4:TokenFlow \
deviceCode=5:DeviceFlow
CodeFlow authorizationUrl=1 tokenUrl=2 refreshUrl=3 scopes=4:%text pkceRequired=5:bool
TokenFlow tokenUrl=1 refreshUrl=2 scopes=3:%text
ImplicitFlow authorizationUrl=1 refreshUrl=2 scopes=3:%text
DeviceFlow deviceAuthorizationUrl=1 tokenUrl=2 refreshUrl=3 scopes=4:%text
AgentProvider url=1 organization=2
AgentExtension uri=1 description=2 required=3:bool params=4:object
AgentCardSignature protected=1 signature=2 header=3:object
"""
"""What the cards of both have alike."""

_V10: Final = """
Part text=1 raw=2:bytes url=3 data=4:any metadata=5:object filename=6 mediaType=7
Message messageId=1 contextId=2 taskId=3 role=4:Role parts!=5:*Part metadata=6:object extensions=7:*text \
referenceTaskIds=8:*text
Artifact artifactId!=1 name=2 description=3 parts!=4:*Part metadata=5:object extensions=6:*text
TaskStatus state!=1:TaskState message=2:Message timestamp=3:time
Task id!=1 contextId=2 status=3:TaskStatus artifacts=4:*Artifact history=5:*Message metadata=6:object
TaskStatusUpdateEvent taskId!=1 contextId=2 status=3:TaskStatus metadata=4:object
TaskArtifactUpdateEvent taskId!=1 contextId=2 artifact=3:Artifact append=4:bool lastChunk=5:bool metadata=6:object
AuthenticationInfo scheme!=1 credentials=2
TaskPushNotificationConfig tenant=1 id=2 taskId=3 url!=4 token=5 authentication=6:AuthenticationInfo
SendMessageConfiguration acceptedOutputModes=1:*text taskPushNotificationConfig=2:TaskPushNotificationConfig \
historyLength=3:int returnImmediately=4:bool
SendMessageRequest tenant=1 message=2:Message configuration=3:SendMessageConfiguration metadata=4:object
GetTaskRequest tenant=1 id!=2 historyLength=3:int
ListTasksRequest tenant=1 contextId=2 status=3:TaskState pageSize=4:int pageToken=5 historyLength=6:int \
statusTimestampAfter=7:time includeArtifacts=8:bool
ListTasksResponse tasks=1:*Task nextPageToken=2 pageSize=3:int totalSize=4:int
CancelTaskRequest tenant=1 id!=2 metadata=3:object
SubscribeToTaskRequest tenant=1 id!=2
GetTaskPushNotificationConfigRequest tenant=1 taskId!=2 id!=3
ListTaskPushNotificationConfigsRequest taskId!=1 pageSize=2:int pageToken=3 tenant=4
ListTaskPushNotificationConfigsResponse configs=1:*TaskPushNotificationConfig nextPageToken=2
GetExtendedAgentCardRequest tenant=1
StreamResponse task=1:Task message=2:Message statusUpdate=3:TaskStatusUpdateEvent \
artifactUpdate=4:TaskArtifactUpdateEvent
Empty
AgentInterface url=1 protocolBinding=2 tenant=3 protocolVersion=4
AgentCapabilities streaming=1:bool pushNotifications=2:bool extensions=3:*AgentExtension extendedAgentCard=4:bool
SecurityRequirement schemes=1:%StringList
AgentSkill id=1 name=2 description=3 tags=4:*text examples=5:*text inputModes=6:*text outputModes=7:*text \
securityRequirements=8:*SecurityRequirement
AgentCard name=1 description=2 supportedInterfaces=3:*AgentInterface provider=4:AgentProvider version=5 \
documentationUrl=6 capabilities=7:AgentCapabilities securitySchemes=8:%SecurityScheme \
securityRequirements=9:*SecurityRequirement defaultInputModes=10:*text defaultOutputModes=11:*text \
skills=12:*AgentSkill signatures=13:*AgentCardSignature iconUrl=14
"""

_V03: Final = """
Part text=1 file=2:FilePart data=3:DataPart metadata=4:object
FilePart fileWithUri=1 fileWithBytes=2:bytes mimeType=3 name=4
DataPart data=1:object
Message messageId=1 contextId=2 taskId=3 role=4:Role content=5:*Part metadata=6:object extensions=7:*text
Artifact artifactId!=1 name=3 description=4 parts=5:*Part metadata=6:object extensions=7:*text
TaskStatus state!=1:TaskState message=2:Message timestamp=3:time
Task id!=1 contextId=2 status=3:TaskStatus artifacts=4:*Artifact history=5:*Message metadata=6:object
TaskStatusUpdateEvent taskId!=1 contextId=2 status=3:TaskStatus final=4:bool metadata=5:object
TaskArtifactUpdateEvent taskId!=1 contextId=2 artifact=3:Artifact append=4:bool lastChunk=5:bool metadata=6:object
AuthenticationInfo schemes=1:*text credentials=2
PushNotificationConfig id=1 url!=2 token=3 authentication=4:AuthenticationInfo
TaskPushNotificationConfig name=1 pushNotificationConfig=2:PushNotificationConfig
SendMessageConfiguration acceptedOutputModes=1:*text pushNotification=2:PushNotificationConfig historyLength=3:int \
blocking=4:bool
SendMessageRequest message=1:Message configuration=2:SendMessageConfiguration metadata=3:object
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
"""

_STATUS: Final = """
Status code=1:int message=2 details=3:*Any
Any typeUrl=1 value=2:bytes
ErrorInfo reason=1 domain=2 metadata=3:%text
BadRequest fieldViolations=1:*FieldViolation
FieldViolation field=1 description=2
"""

V10: Final = Schema(_V10 + _SECURITY.strip(), {"TaskState": _states("CANCELED"), "Role": _ROLES})
"""Package lf.a2a.v1. A reply to a message is written as the item of a stream: it has the same numbers."""
V03: Final = Schema(_V03 + _SECURITY.strip(), {"TaskState": _states("CANCELLED"), "Role": _ROLES})
"""Package a2a.v1. Requests that only name something are one message here."""
STATUS: Final = Schema(_STATUS, {})
"""google.rpc.Status and the details that we write and read."""
