"""Pulsar's commands and metadata as a table of field numbers, and protobuf's message classes made from it.

Only what is read or answered here is in the table. Whatever else a client says of a message or a batch is carried by
protobuf as unknown fields, so nothing that passes through is lost; of a message inside a batch, `Single`, the table has
every field that Pulsar has. Enumerations are plain numbers, keys and properties are bytes (what clients in other
languages send as text need not be UTF-8), and nothing is required: what must be there is checked where it is read.
Names are this module's own; the numbers are the protocol's.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from sluice.storage.errors import Invalid

_F = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "u64": _F.TYPE_UINT64,
    "i64": _F.TYPE_INT64,
    "u32": _F.TYPE_UINT32,
    "i32": _F.TYPE_INT32,
    "bool": _F.TYPE_BOOL,
    "str": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "f64": _F.TYPE_DOUBLE,
}

_TABLE = {
    "MessageId": "ledger:1:u64 entry:2:u64 partition:3:i32:-1 batch_index:4:i32:-1 ack_set:5:*i64 batch_size:6:i32",
    "KeyValue": "key:1:bytes value:2:bytes",
    "IntRange": "start:1:i32 end:2:i32",
    "Schema": "name:1:str data:3:bytes type:4:i32 properties:5:*KeyValue",
    "Metadata": (
        "producer_name:1:bytes sequence_id:2:u64 publish_time:3:u64 properties:4:*KeyValue partition_key:6:bytes "
        "compression:8:i32 uncompressed_size:9:u32 num_messages:11:i32:1 event_time:12:u64 encryption_keys:13:*bytes "
        "schema_version:16:bytes key_is_base64:17:bool ordering_key:18:bytes deliver_at_time:19:i64 marker_type:20:i32 "
        "highest_sequence_id:24:u64 null_value:25:bool uuid:26:bytes num_chunks:27:i32 total_chunk_size:28:i32 "
        "chunk_id:29:i32 null_partition_key:30:bool"
    ),
    "Single": (
        "properties:1:*KeyValue partition_key:2:bytes payload_size:3:i32 compacted_out:4:bool event_time:5:u64 "
        "key_is_base64:6:bool ordering_key:7:bytes sequence_id:8:u64 null_value:9:bool null_partition_key:10:bool"
    ),
    "EncryptionKey": "key:1:bytes value:2:bytes metadata:3:*KeyValue",
    "FeatureFlags": (
        "auth_refresh:1:bool broker_entry_metadata:2:bool partial_producer:3:bool topic_watchers:4:bool "
        "partitions_without_creation:5:bool"
    ),
    "Connect": (
        "client_version:1:str auth_data:3:bytes protocol_version:4:i32 auth_method_name:5:str original_principal:7:str"
    ),
    "Connected": "server_version:1:str protocol_version:2:i32 max_message_size:3:i32 feature_flags:4:FeatureFlags",
    "KeySharedMeta": "mode:1:i32 hash_ranges:3:*IntRange allow_out_of_order:4:bool",
    "Subscribe": (
        "topic:1:str subscription:2:str type:3:i32 consumer_id:4:u64 request_id:5:u64 consumer_name:6:str "
        "priority_level:7:i32 durable:8:bool:true start_message_id:9:MessageId metadata:10:*KeyValue "
        "read_compacted:11:bool schema:12:Schema "
        "initial_position:13:i32 force_topic_creation:15:bool:true start_rollback_seconds:16:u64 "
        "key_shared:17:KeySharedMeta subscription_properties:18:*KeyValue consumer_epoch:19:u64"
    ),
    "Producer": (
        "topic:1:str producer_id:2:u64 request_id:3:u64 producer_name:4:str encrypted:5:bool metadata:6:*KeyValue "
        "schema:7:Schema epoch:8:u64 user_provided_name:9:bool:true access_mode:10:i32 topic_epoch:11:u64 "
        "txn_enabled:12:bool initial_subscription:13:str"
    ),
    "Send": (
        "producer_id:1:u64 sequence_id:2:u64 num_messages:3:i32:1 txn_least:4:u64 txn_most:5:u64 "
        "highest_sequence_id:6:u64 is_chunk:7:bool marker:8:bool"
    ),
    "Receipt": "producer_id:1:u64 sequence_id:2:u64 message_id:3:MessageId highest_sequence_id:4:u64",
    "SendError": "producer_id:1:u64 sequence_id:2:u64 error:3:i32 message:4:str",
    "Message": (
        "consumer_id:1:u64 message_id:2:MessageId redelivery_count:3:u32 ack_set:4:*i64 consumer_epoch:5:u64"
    ),
    "Ack": (
        "consumer_id:1:u64 ack_type:2:i32 message_id:3:*MessageId validation_error:4:i32 txn_least:6:u64 "
        "txn_most:7:u64 request_id:8:u64"
    ),
    "AckOfBytes": (
        "consumer_id:1:u64 ack_type:2:i32 message_id:3:*bytes validation_error:4:i32 txn_least:6:u64 txn_most:7:u64 "
        "request_id:8:u64"
    ),
    "AckCommand": "type:1:i32 ack:10:AckOfBytes",
    "AckResponse": "consumer_id:1:u64 error:4:i32 message:5:str request_id:6:u64",
    "Flow": "consumer_id:1:u64 permits:2:u32",
    "Unsubscribe": "consumer_id:1:u64 request_id:2:u64 force:3:bool",
    "Success": "request_id:1:u64 schema:2:Schema",
    "Error": "request_id:1:u64 error:2:i32 message:3:str",
    "CloseProducer": "producer_id:1:u64 request_id:2:u64",
    "CloseConsumer": "consumer_id:1:u64 request_id:2:u64",
    "ProducerSuccess": (
        "request_id:1:u64 producer_name:2:str last_sequence_id:3:i64:-1 schema_version:4:bytes topic_epoch:5:u64 "
        "producer_ready:6:bool:true"
    ),
    "Empty": "",
    "Redeliver": "consumer_id:1:u64 message_ids:2:*MessageId consumer_epoch:3:u64",
    "PartitionMetadata": "topic:1:str request_id:2:u64 allow_creation:6:bool:true",
    "PartitionMetadataAnswer": "partitions:1:u32 request_id:2:u64 response:3:i32 error:4:i32 message:5:str",
    "Lookup": "topic:1:str request_id:2:u64 authoritative:3:bool listener:7:str",
    "LookupAnswer": (
        "url:1:str url_tls:2:str response:3:i32 request_id:4:u64 authoritative:5:bool error:6:i32 message:7:str "
        "through_service_url:8:bool"
    ),
    "ConsumerStats": "request_id:1:u64 consumer_id:4:u64",
    "ConsumerStatsAnswer": (
        "request_id:1:u64 error:2:i32 message:3:str rate_out:4:f64 throughput_out:5:f64 rate_redeliver:6:f64 "
        "consumer_name:7:str available_permits:8:u64 unacked:9:u64 blocked:10:bool address:11:str "
        "connected_since:12:str type:13:str rate_expired:14:f64 backlog:15:u64 ack_rate:16:f64"
    ),
    "Seek": "consumer_id:1:u64 request_id:2:u64 message_id:3:MessageId publish_time:4:u64",
    "Asked": "consumer_id:1:u64 request_id:2:u64",
    "LastIdAnswer": "last:1:MessageId request_id:2:u64 mark_delete:3:MessageId",
    "ActiveConsumer": "consumer_id:1:u64 is_active:2:bool",
    "TopicsOf": "request_id:1:u64 namespace:2:str mode:3:i32 pattern:4:str hash:5:str",
    "TopicsOfAnswer": "request_id:1:u64 topics:2:*str filtered:3:bool hash:4:str changed:5:bool:true",
    "GetSchema": "request_id:1:u64 topic:2:str version:3:bytes",
    "GetSchemaAnswer": "request_id:1:u64 error:2:i32 message:3:str schema:4:Schema version:5:bytes",
    "AuthData": "method:1:str data:2:bytes",
    "AuthResponse": "client_version:1:str response:2:AuthData protocol_version:3:i32",
    "PutSchema": "request_id:1:u64 topic:2:str schema:3:Schema",
    "PutSchemaAnswer": "request_id:1:u64 error:2:i32 message:3:str version:4:bytes",
    "Request": "request_id:1:u64",
    "ReachedEnd": "consumer_id:1:u64",
    "Command": (
        "type:1:i32 connect:2:Connect connected:3:Connected subscribe:4:Subscribe producer:5:Producer send:6:Send "
        "send_receipt:7:Receipt send_error:8:SendError message:9:Message ack:10:Ack flow:11:Flow "
        "unsubscribe:12:Unsubscribe success:13:Success error:14:Error close_producer:15:CloseProducer "
        "close_consumer:16:CloseConsumer producer_success:17:ProducerSuccess ping:18:Empty pong:19:Empty "
        "redeliver:20:Redeliver partition_metadata:21:PartitionMetadata "
        "partition_metadata_answer:22:PartitionMetadataAnswer lookup:23:Lookup lookup_answer:24:LookupAnswer "
        "consumer_stats:25:ConsumerStats consumer_stats_answer:26:ConsumerStatsAnswer reached_end:27:ReachedEnd "
        "seek:28:Seek get_last_id:29:Asked last_id_answer:30:LastIdAnswer active_consumer:31:ActiveConsumer "
        "topics_of:32:TopicsOf "
        "topics_of_answer:33:TopicsOfAnswer get_schema:34:GetSchema get_schema_answer:35:GetSchemaAnswer "
        "auth_response:37:AuthResponse ack_answer:38:AckResponse put_schema:39:PutSchema "
        "put_schema_answer:40:PutSchemaAnswer new_txn:50:Request add_partition_to_txn:52:Request "
        "add_subscription_to_txn:54:Request end_txn:56:Request end_txn_on_partition:58:Request "
        "end_txn_on_subscription:60:Request txn_coordinator:62:Request watch_topics:64:Request "
        "watch_topics_close:67:Request"
    ),
}  # fmt: skip
"""Message name -> fields `name:number:kind[:default]`; a star before the kind makes it repeated."""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="sluice/pulsar", package="sluice.pulsar", syntax="proto2")
    for name, fields in _TABLE.items():
        kind = file.message_type.add(name=name)
        for text in fields.split():
            field, number, shape, *default = text.split(":")
            label = _F.LABEL_REPEATED if shape.startswith("*") else _F.LABEL_OPTIONAL
            shape = shape.removeprefix("*")
            made = kind.field.add(name=field, number=int(number), label=label)
            if shape in _KINDS:
                made.type = _KINDS[shape]
            else:
                made.type, made.type_name = _F.TYPE_MESSAGE, f".sluice.pulsar.{shape}"
            if default:
                made.default_value = default[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sluice.pulsar.{name}")) for name in _TABLE
    }


_CLASSES = _build()
Command: Any = _CLASSES["Command"]
"""The envelope of every command: `type`, and the field of that number."""
AckCommand: Any = _CLASSES["AckCommand"]
"""The envelope of an acknowledgement, which leaves its ids as the bytes that they are: there may be thousands."""
MessageId: Any = _CLASSES["MessageId"]
Metadata: Any = _CLASSES["Metadata"]
"""The metadata before the payload of a frame: of a message, or of a batch."""
Single: Any = _CLASSES["Single"]
"""The metadata before each message of a batch."""
EncryptionKey: Any = _CLASSES["EncryptionKey"]
"""An entry of the metadata's `encryption_keys`, which stay the bytes that they are."""
Schema: Any = _CLASSES["Schema"]

FIELD_OF: dict[int, str] = {field.number: field.name for field in Command.DESCRIPTOR.fields if field.number > 1}
"""The field that a command's `type` names: both are the same number."""
NOT_OFFERED = frozenset(
    field.name
    for field in Command.DESCRIPTOR.fields
    if field.message_type is not None and field.message_type.name == "Request"
)
"""Requests of clients of which nothing is read but their number."""


def tags(message: str, *fields: str) -> tuple[int, ...]:
    """How these fields of a message begin on the wire: number and kind as one varint, its first byte the lowest."""
    return tuple(_tag(_CLASSES[message].DESCRIPTOR.fields_by_name[name]) for name in fields)


def _tag(field: Any) -> int:
    key: int = field.number << 3 | (2 if field.type in (_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE) else 0)
    return key if key < 0x80 else key & 0x7F | 0x80 | key >> 7 << 8


class ServerError:
    """Pulsar's error codes."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    NOT_ALLOWED = 22
    PRODUCER_FENCED = 25


class MalformedCommand(Invalid):
    """Bytes that are no frame of the protocol: the client is told, and its connection ends."""


def parse(kind: Any, data: bytes | memoryview) -> Any:
    """Return a message of a class of this module. Raises MalformedCommand."""
    try:
        return kind.FromString(bytes(data))
    except Exception as error:  # protobuf's DecodeError and, by version, RuntimeError
        raise MalformedCommand(f"a {kind.DESCRIPTOR.name} cannot be read: {error}") from None


def check_text(body: Any) -> None:
    """Raise Invalid if what should be text in a command is not UTF-8; protobuf hands that out as bytes."""
    for field, value in body.ListFields():
        if field.message_type is not None:
            for one in (value,) if isinstance(value, Message) else value:
                check_text(one)
        elif field.type == field.TYPE_STRING and isinstance(value, bytes):
            raise Invalid(f"the {field.name} of a {body.DESCRIPTOR.name} is not UTF-8")


def command(name: str, **values: Any) -> Any:
    """Return a command by the name of its field, filled in."""
    return Command(type=Command.DESCRIPTOR.fields_by_name[name].number, **{name: values})
