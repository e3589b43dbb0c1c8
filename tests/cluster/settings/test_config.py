"""Sources of values, existing keys, and messages about a wrong one."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec
import pytest

from sluice.actors.bookie.settings import LIMITS, BookieSettings
from sluice.actors.messages import SubscriptionSettings, TopicSettings
from sluice.cluster.settings.config import known_keys, load, parse_duration, parse_size, to_toml
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Invalid
from sluice.storage.format.journal import ENVELOPE_BYTES, MAX_BODY_BYTES, SALT_BYTES, Envelope, Kind, encode_envelope


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of the machine or of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


def test_flag_beats_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text("bookies = 4\nbrokers = 11\nobjects = 's3://b/p'\n")
    monkeypatch.setenv("SLUICE_BOOKIES", "5")
    monkeypatch.setenv("SLUICE_BROKERS", "12")
    loaded = load(bookies=6)
    assert (loaded.values.bookies, loaded.values.brokers, loaded.values.objects) == (6, 12, "s3://b/p")
    assert loaded.values.cpus is None
    assert loaded.sources == {"bookies": "flag", "brokers": "environment", "objects": "sluice.toml"}


def test_sections_are_merged_key_by_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text("[topic]\npartitions = 8\nroll_bytes = '64MB'\nroll_ms = '1h'\n")
    monkeypatch.setenv("SLUICE_TOPIC__ROLL_BYTES", "1MB")
    settings = load(topic={"partitions": "9"}).values.topic_settings()
    assert (settings.partitions, settings.roll_bytes, settings.roll_ms) == (9, 1 << 20, 3_600_000)
    assert settings.ack_quorum == TopicSettings().ack_quorum


def test_defaults_are_those_of_the_actors() -> None:
    values = load().values
    assert values.topic_settings() == TopicSettings()
    assert values.subscription_settings() == SubscriptionSettings()
    bookies = msgspec.structs.asdict(BookieSettings())
    assert values.cluster_options() == ClusterOptions(
        Path("sluice-data"),
        pulsar_port=6650,
        pulsar_web_port=8080,
        pulsar_web_tls_port=8443,
        bookie_settings=bookies,
    )


_SETTINGS = (("topic", TopicSettings), ("subscription", SubscriptionSettings), ("bookie", BookieSettings))


def test_every_setting_of_the_actors_is_a_key() -> None:
    for section, kind in _SETTINGS:
        for field in msgspec.structs.fields(kind):
            assert f"{section}.{field.name}" in known_keys()


def test_printed_settings_read_back(tmp_path: Path) -> None:
    first = load(bookies=7, topic={"partitions": 3}, data_dir='some where/"quoted"/\\é/\x7f/\U0001f4e6')
    file = tmp_path / "printed.toml"
    file.write_text(to_toml(first))
    assert tomllib.loads(file.read_text())["bookies"] == 7
    second = load(file)
    assert second.values.model_dump() == first.values.model_dump()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250ms", 250), ("10s", 10_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("2d", 172_800_000), ("7", 7)],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "s", "10 years", "-1s", "1s2", "1h-3m", "1e3s"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes", "offload_threshold_seconds"])
def test_unlimited_value_can_be_written_as_text(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On the command line, in the environment and in a file every value may be a text."""
    assert getattr(load().values.topic_settings(**{name: "-1"}), name) == -1
    with pytest.raises(Invalid, match="-2"):
        load().values.topic_settings(**{name: "-2"})
    monkeypatch.setenv(f"SLUICE_TOPIC__{name.upper()}", "-1")
    assert getattr(load().values.topic_settings(), name) == -1


def test_a_part_of_a_second_is_not_none() -> None:
    """With 0 s every ledger would leave at once."""
    wanted = {"500ms": 1, "1500ms": 2, "2s": 2, "0": 0, "7": 7}
    settings = [load().values.topic_settings(offload_threshold_seconds=text) for text in wanted]
    assert [each.offload_threshold_seconds for each in settings] == list(wanted.values())


@pytest.mark.parametrize(
    ("text", "expected"), [("64MB", 64 << 20), ("1GiB", 1 << 30), ("512k", 512 << 10), ("9", 9), ("1.5KB", 1536)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "10 parsecs", "1MB2"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("bokies = 3", "'bokies' is not a configuration key (sluice.toml); did you mean 'bookies'?"),
        ("[topic]\npartitons = 3", "did you mean 'topic.partitions'?"),
        ("[subscription]\nunblockingIntervalMs = 3", "did you mean 'subscription.unblocking_interval_ms'?"),
        ("[tpic]\nx = 3", "'tpic.x' is not a configuration key"),
        ("bookies = 0", "bookies = 0 (sluice.toml): Input should be greater than or equal to 1"),
        ("[topic]\nroll_ms = 'soon'", "topic.roll_ms = 'soon' (sluice.toml): 'soon' is not a duration"),
        ("bookies = ", "cannot read the configuration file sluice.toml"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "sluice.toml").write_text(content)
    with pytest.raises(Invalid) as caught:
        load()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_environment_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DEBUG", "1")
    for link in ("SERVICE_HOST", "SERVICE_PORT_METRICS", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"SLUICE_HEAD_SVC_{link}", "tcp://10.0.0.1:8080")
    load()
    monkeypatch.setenv("SLUICE_BOOKEIS", "3")
    with pytest.raises(Invalid, match="did you mean 'SLUICE_BOOKIES'"):
        load()


def test_a_section_that_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TOPIC", '{"ack_quorum": 1}')
    assert load().values.topic.ack_quorum == 1  # type: ignore[attr-defined]
    monkeypatch.setenv("SLUICE_TOPIC", "{ack_quorum: 1}")
    with pytest.raises(Invalid, match='"topic"'):
        load()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no configuration file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": 0}, {"partitions": 1025}, {"ack_quorum": 3}, {"write_quorum": 3}, {"ack_quorum": 0},
        {"roll_ms": "x"}, {"roll_ms": -1}, {"nothing": 1},
    ],
)  # fmt: skip
def test_bad_topic_settings(changes: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        load().values.topic_settings(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"segment_bytes": "4GB"}, {"segment_bytes": 0}, {"group_bytes": "2GB"}, {"queue_bytes": -1},
        {"checkpoint_runs": 0}, {"reserve_bytes": "1TB"}, {"compact_below": 101}, {"housekeeping_ms": 0},
    ],
)  # fmt: skip
def test_bad_bookie_settings(changes: dict[str, object]) -> None:
    """With which a bookie would end when a segment is long, refuse all, or do nothing but look after itself."""
    with pytest.raises(Invalid, match=next(iter(changes))):
        load(bookie=changes).values.cluster_options()


def test_places_in_the_largest_segment_can_be_written() -> None:
    """The last group begins just below its end."""
    limit, group = LIMITS["segment_bytes"][1], LIMITS["group_bytes"][1]
    last = Envelope(Kind.RUN, 1, limit + group, durable=limit + group + MAX_BODY_BYTES)
    assert len(encode_envelope(last, bytes(SALT_BYTES))[0]) == ENVELOPE_BYTES


@pytest.mark.parametrize("changes", [{"policy": "x"}, {"type": "x"}, {"lease_ms": -5}, {"replica_points": "many"}])
def test_bad_subscription_settings(changes: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        load().values.subscription_settings(**changes)


def test_a_user_without_a_home_has_no_file_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)

    def unknown(number: int) -> object:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert load().sources == {}
