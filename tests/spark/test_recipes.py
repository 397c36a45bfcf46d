"""The how-to page about decoding bodies, with the jars of Avro and Protobuf.

Bodies are made here by the specifications of the formats, not by Spark.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

import store_builder
from spark.maven_jars import spark_jars

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "decode-bodies.md"
VERSIONS = "|".join(dict.fromkeys((pyspark.__version__, "4.2.0", "4.1.1", "4.0.1")))
RECORD_ID = 0x0102_0304_0506
ORDERS = [("o-1", 12.5), ("ö-2", -0.25)]


def avro(text: str, price: float) -> bytes:
    """Return a record of a string and a double: lengths are zigzag varints, doubles 8 bytes."""
    encoded = text.encode()
    return bytes([2 * len(encoded)]) + encoded + struct.pack("<d", price)


def protobuf(number: int, value: bytes | int) -> bytes:
    """Return a field of a message: a varint, or bytes with their length."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def order(text: str, price: float) -> bytes:
    return protobuf(1, text.encode()) + bytes([2 << 3 | 1]) + struct.pack("<d", price)


def descriptor() -> bytes:
    """Return the file of protoc for ``message Order { string id = 1; double price = 2; }``."""

    def field(name: bytes, number: int, kind: int) -> bytes:
        parts = ((1, name), (3, number), (4, 1), (5, kind))
        return protobuf(2, b"".join(protobuf(*part) for part in parts))

    message = protobuf(1, b"Order") + field(b"id", 1, 9) + field(b"price", 2, 1)
    file = protobuf(1, b"orders.proto") + protobuf(4, message) + protobuf(12, b"proto3")
    return protobuf(1, file)


def as_json(text: str, price: float) -> bytes:
    return json.dumps({"id": text, "price": price, "more": 1}, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of all topics of the page, and the descriptor."""
    folder = tmp_path_factory.mktemp("data")
    record_id = struct.pack(">q", RECORD_ID)
    bodies = {
        "orders-json": [*(as_json(*each) for each in ORDERS), b"no json"],
        "orders-avro": [*(avro(*each) for each in ORDERS), b"\x09"],
        "orders-registry": [
            bytes([2 * 8]) + record_id + avro(*ORDERS[0]),
            bytes([2 * 16]) + record_id + bytes(8) + avro(*ORDERS[1]),
        ],
        "orders-registry-json": [record_id + as_json(*each) for each in ORDERS],
        "orders-protobuf": [*(order(*each) for each in ORDERS), b"\x09"],
    }
    store_builder.build(
        folder / "store",
        [store_builder.message(topic, body) for topic in bodies for body in bodies[topic]],
    )
    (folder / "orders.desc").write_bytes(descriptor())
    return folder


def run(data: Path, jars: str, *sections: str) -> dict[str, list[dict[str, Any]]]:
    script = Path(__file__).with_name("recipes_session.py")
    ran = subprocess.run(
        [sys.executable, script, PAGE, data, jars, *sections],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    rows: dict[str, list[dict[str, Any]]] = json.loads(ran.stdout)
    return rows


def orders(rows: list[dict[str, Any]], **more: str) -> list[dict[str, Any]]:
    """Check that the last body was not readable, and return the orders before it."""
    *first, last = (row["order"] for row in rows)
    assert last is None or not any(last.values())
    return first


EXPECTED = [{"id": text, "price": price} for text, price in ORDERS]


def test_json_and_avro(data: Path) -> None:
    jars = spark_jars([f"org.apache.spark:spark-avro_2.13:{VERSIONS}"])
    rows = run(data, jars, "JSON", "Avro", "rocketmq-schema-registry")
    assert orders(rows["json_orders"]) == EXPECTED
    assert orders(rows["avro_orders"]) == EXPECTED
    assert orders(rows["changed_orders"]) == [{**each, "currency": "EUR"} for each in EXPECTED]
    assert [row["framed"]["value"] for row in rows["framed_orders"]] == EXPECTED
    ids = {row["framed"]["record_id"][:16] for row in rows["framed_orders"]}
    assert ids == {f"{RECORD_ID:016x}"}
    assert [row["order"] for row in rows["framed_json"]] == EXPECTED
    assert {row["record_id"] for row in rows["framed_json"]} == {str(RECORD_ID)}


def test_protobuf(data: Path) -> None:
    jars = spark_jars([f"org.apache.spark:spark-protobuf_2.13:{VERSIONS}"])
    rows = run(data, jars, "JSON", "Protobuf")
    assert orders(rows["protobuf_orders"]) == EXPECTED
