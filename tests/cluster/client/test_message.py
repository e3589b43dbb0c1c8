"""Message ids as text, as programs keep them."""

from __future__ import annotations

import pytest

from sluice.cluster.client.message import MessageId
from sluice.storage.errors import Invalid


@pytest.mark.parametrize("text", ["earliest:0", "earliest:3", "4:17:3"])
def test_a_message_id_is_read_as_it_is_shown(text: str) -> None:
    """That of a repetition whose place nobody remembers too."""
    assert str(MessageId.deserialize(MessageId.parse(text).serialize())) == text


@pytest.mark.parametrize("text", ["1:2:²", "²:2", "1:²:0", ":", "earliest:", "earliest:x"])
def test_text_that_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="a message id is"):
        MessageId.parse(text)
