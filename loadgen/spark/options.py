"""The options of `format("sluice")`: which ones each use has, and their values where they are not given.

The tables of docs/history.md have the same names and values; a test compares them. "" stands for an option without a
value of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from sluice.cluster.history.log_read import given
from sluice.storage.errors import Invalid

_CLUSTER = {"topic": "", "dataDir": "", "address": "", "tokenFile": ""}
_LOG = {
    "history": "auto",
    "metadata": "",
    "objects": "",
    "s3EndpointUrl": "",
    "startingOffsets": "earliest",
    "startingTimestamp": "",
    "endingTimestamp": "",
    "key": "",
}
_STREAM = {"maxMessagesPerTrigger": "100000"}

READ, WRITE, STREAM, CONSUMER, SINK = "read", "write", "readStream", "consumer", "writeStream"
OPTIONS: dict[str, dict[str, str]] = {
    READ: {**_CLUSTER, **_LOG, "endingOffsets": "latest", "maxMessagesPerTask": "1000000"},
    WRITE: {**_CLUSTER, "producer": ""},
    STREAM: {**_CLUSTER, **_LOG, **_STREAM, "failOnDataLoss": "true"},
    CONSUMER: {**_CLUSTER, **_STREAM, "subscription": "", "spool": ""},
    SINK: _CLUSTER,
}
"""By use: the options by name, with values where none is given. A consumer reads a stream by a subscription."""

_OF_SPARK = ("path", "paths", "checkpointlocation", "queryname", "outputmode")
"""Options that Spark itself hands on, small."""


def check_options(options: Mapping[str, str], use: str) -> None:
    """Raise Invalid for a name that is no option of a use, which would change nothing in silence. Spark writes names
    small.
    """
    known = {name.lower(): name for names in OPTIONS.values() for name in names}
    for name in options:
        small = str(name).lower()
        if small in _OF_SPARK or small.startswith(("spark.", "__")) or known.get(small) in OPTIONS[use]:
            continue
        if small in known:
            uses = [one for one, names in OPTIONS.items() if known[small] in names]
            raise Invalid(f"{known[small]!r} is an option of {', '.join(uses)}, not of {use}")
        close = get_close_matches(small, known, n=1)
        better = f"did you mean {known[close[0]]!r}?" if close else f"there are {', '.join(OPTIONS[use])}"
        raise Invalid(f"{name!r} is not an option of format sluice; {better}")


def value_of(options: Mapping[str, str], use: str, name: str) -> str:
    """The value of an option; "" if there is none."""
    return given(options, name) or OPTIONS[use][name]


def number_of(options: Mapping[str, str], use: str, name: str) -> int:
    """A whole number of at least 1 among the options, which Spark gives as text. Raises Invalid."""
    text = value_of(options, use, name)
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"the option {name!r} is a whole number of at least 1, not {text!r}")
    return int(text)


def is_true(options: Mapping[str, str], use: str, name: str) -> bool:
    """Whether an option is true. Raises Invalid."""
    text = value_of(options, use, name).lower()
    if text not in ("true", "false"):
        raise Invalid(f"the option {name!r} is true or false, not {text!r}")
    return text == "true"
