"""H-1: the sticky hash, by the published values and against an independent implementation."""

from __future__ import annotations

import base64

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.storage.format.hashing import MASK, hash_column, java_hash_column, masked_hash, reduce_hash

KNOWN = [
    ("", 0, 1, 1),
    ("a", 1009084850, 42456, 27058),
    ("ab", 465557343, 62239, 55135),
    ("abc", 870159354, 51160, 37882),
    ("abcd", 1139631978, 43864, 26474),
    ("key1", 462881061, 7357, 293),
    ("key-0", 1664612543, 23544, 63679),
    ("any", 19256262, 54508, 54214),
    ("0", 1383186559, 4850, 49279),
    ("1", 337030291, 49322, 44179),
    ("2", 19522071, 58177, 57879),
    ("hello world", 1586663183, 60834, 36623),
    ("äöü", 769542228, 30259, 18516),
]


@pytest.mark.parametrize(("key", "masked", "ring", "folded"), KNOWN)
def test_h_1_known_values(key: str, masked: int, ring: int, folded: int) -> None:
    """KS-1, KS-2, KS-3."""
    one = hash_column(pa.array([key.encode()]))
    assert one.tolist() == [masked]
    assert masked_hash(key.encode()) == masked
    assert reduce_hash(one).tolist() == [ring]
    assert reduce_hash(one, size=65536, start=0).tolist() == [folded]


@given(st.lists(st.binary(max_size=70), max_size=60), st.integers(0, 5))
def test_a_column_hashes_like_its_keys(keys: list[bytes], skipped: int) -> None:
    """Also for slices of columns, whose offsets do not begin at 0."""
    column = pa.array(keys, pa.binary())[skipped:]
    assert hash_column(column).tolist() == [mmh3.hash(key, 0, signed=False) & MASK for key in keys[skipped:]]


def test_zero_is_reserved_in_every_range() -> None:
    """KS-2: no hash is ever reduced to 0, and none leaves its range."""
    everything = np.arange(0, 200_000, dtype=np.uint32)
    ring = reduce_hash(everything)
    folded = reduce_hash(everything, size=65536, start=0)
    assert (ring.min(), ring.max()) == (1, 65535)
    assert (folded.min(), folded.max()) == (1, 65535)


def test_reducing_leaves_its_input_alone() -> None:
    """The masked column is used again by others."""
    masked = np.array([0, 65536, 5], np.uint32)
    reduce_hash(masked, size=65536, start=0)
    assert masked.tolist() == [0, 65536, 5]


JAVA = [
    ("", 0), ("a", 97), ("hello", 99162322), ("Hello, world", -476288596), ("polygenelubricants", -2147483648),
    ("äöü", 226986), ("😀", 1772899),
]  # fmt: skip
"""What String.hashCode of OpenJDK 17 says."""


@pytest.mark.parametrize(("key", "code"), JAVA)
def test_java_s_hash_of_known_keys(key: str, code: int) -> None:
    assert java_hash_column(pa.array([key])).tolist() == [code & MASK]


@given(st.lists(st.one_of(st.text(max_size=9).map(str.encode), st.binary(max_size=9)), max_size=9), st.integers(0, 3))
def test_java_s_hash_of_any_keys(keys: list[bytes], skipped: int) -> None:
    """A key that is no text is hashed as it travels, in base64; columns may begin anywhere in their buffers."""

    def slow(key: bytes) -> int:
        try:
            text = key.decode()
        except UnicodeDecodeError:
            text = base64.b64encode(key).decode()
        code = 0
        for unit in np.frombuffer(text.encode("utf-16-le"), "<u2").tolist():
            code = code * 31 + unit
        return code & MASK

    column = pa.array(keys, pa.binary())[skipped:]
    assert java_hash_column(column).tolist() == [slow(key) for key in keys[skipped:]]
