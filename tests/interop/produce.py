"""Confluent's own producer and serializer: `python produce.py BROKER TOPIC [REGISTRY SCHEMA]`.

Run by test_kafka.py in an environment of its own; the rows come on standard input, a JSON object a
line, and go out in JSON, or in Avro of this schema.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext


def main(broker: str, topic: str, registry: str = "", schema: str = "") -> None:
    producer = Producer({
        "bootstrap.servers": broker, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "pw-of-ann",
    })  # fmt: skip
    context = SerializationContext(topic, MessageField.VALUE)
    turn = None
    if registry:
        turn = AvroSerializer(SchemaRegistryClient({"url": registry}), schema)
    for line in sys.stdin:
        body = turn(json.loads(line), context) if turn else line.strip().encode()
        producer.produce(topic, body, key=b"k")
    producer.produce(topic, None, key=b"k")  # a message without a body
    assert producer.flush(60) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
