"""The manifest's bytes."""

import google_crc32c
import msgpack
import pytest

from sluice.storage.delayed.manifest import BucketRecord, Manifest, decode_manifest, encode_manifest
from sluice.storage.errors import Corrupt


def record(number: int) -> BucketRecord:
    return BucketRecord(3, number, number * 10, number * 10 + 9, 5, 2, 100, 200, 64, 1000, damaged=number == 2)


def test_a_manifest_reads_back() -> None:
    manifest = Manifest(4, (record(1), record(2)))
    assert decode_manifest(encode_manifest(manifest), "m") == manifest


def test_every_flipped_byte_is_seen() -> None:
    data = encode_manifest(Manifest(4, (record(1),)))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(Corrupt, match="manifest m"):
            decode_manifest(bytes(damaged), "m")


@pytest.mark.parametrize("body", [[2, 1, []], [1, 1], [1, 1, [[1, 2]]], [1, 1, [["x"] * 11]], 5])
def test_other_forms_are_refused(body: object) -> None:
    packed = msgpack.packb(body)
    data = int(google_crc32c.value(packed)).to_bytes(4, "little") + packed
    with pytest.raises(Corrupt, match="manifest m"):
        decode_manifest(data, "m")
