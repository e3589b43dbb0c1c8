"""Records with a checksum."""

from __future__ import annotations

import pytest

from sluice.storage.errors import Corrupt
from sluice.storage.format.checksummed import seal, unseal


def test_a_sealed_body_comes_back() -> None:
    assert unseal(b"KIND", seal(b"KIND", b"what it says"), "the note") == b"what it says"


def test_damaged_bytes_are_reported_by_name() -> None:
    whole = seal(b"KIND", b"what it says")
    with pytest.raises(Corrupt, match=r"^the note is cut off$"):
        unseal(b"KIND", whole[:7], "the note")
    for damaged in (seal(b"ELSE", b"what it says"), whole[:-1], whole[:9] + b"?" + whole[10:]):
        with pytest.raises(Corrupt, match=r"^the note's checksum does not fit$"):
            unseal(b"KIND", damaged, "the note")
