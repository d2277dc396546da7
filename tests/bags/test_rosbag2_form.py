"""What rosbag2 (Jazzy) demands of a bag to open it, where rosbag2 itself is not at hand.

The demands are those of its parsers: `yaml.hpp` and `qos.cpp` of rosbag2_storage for the metadata,
`mcap_storage.cpp` and `sqlite_storage.cpp` for the files. A missing key or another type would throw
there.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import yaml
from ament_index_python.packages import get_package_share_directory
from mcap.reader import make_reader
from small_drives import HEIGHT, WIDTH, small_drive

from penumbra.bags import BagWriter, write_drive
from penumbra.bags.definitions import InstalledTypes
from penumbra.bags.messages import START_NS

OWN = "penumbra_msgs/msg/OodAlert"
POLICIES = {
    "history": {"keep_last", "keep_all", "system_default"},
    "reliability": {"reliable", "best_effort", "system_default"},
    "durability": {"transient_local", "volatile", "system_default"},
    "liveliness": {"automatic", "manual_by_topic", "system_default"},
}
INFINITE = {"sec": 9223372036, "nsec": 854775807}  # RMW_DURATION_INFINITE


def check_qos(qos: dict) -> None:
    for key, words in POLICIES.items():
        assert qos[key] in words
    assert isinstance(qos["depth"], int)
    for key in ("deadline", "lifespan", "liveliness_lease_duration"):
        assert qos[key] == INFINITE
    assert qos["avoid_ros_namespace_conventions"] is False


def check_metadata(node: dict, storage: str, file: str) -> dict[str, dict]:
    """Every key that `convert<BagMetadata>::decode` reads of version 9; the topics by name."""
    assert node["version"] == 9
    assert node["storage_identifier"] == storage
    assert node["relative_file_paths"] == [file]
    assert node["compression_format"] == node["compression_mode"] == ""
    notes = node["custom_data"] or {}  # rosbag2 itself writes null for an empty map
    assert all(isinstance(v, str) for pair in notes.items() for v in pair)
    assert isinstance(node["ros_distro"], str)
    (part,) = node["files"]
    assert part["path"] == file
    for stretch in (node, part):
        assert stretch["duration"]["nanoseconds"] == 2 * 10**8
        assert stretch["starting_time"]["nanoseconds_since_epoch"] == START_NS
    topics = {}
    for entry in node["topics_with_message_count"]:
        topic = entry["topic_metadata"]
        assert topic["serialization_format"] == "cdr"
        for qos in topic["offered_qos_profiles"]:
            check_qos(qos)
        assert topic["type_description_hash"] == installed_hash(topic["type"])
        topics[topic["name"]] = topic
    counts = [entry["message_count"] for entry in node["topics_with_message_count"]]
    assert sum(counts) == node["message_count"] == part["message_count"]
    return topics


def installed_hash(type_name: str) -> str:
    """As rosidl has computed it for the package that is installed here."""
    package, _, name = type_name.split("/")
    file = Path(get_package_share_directory(package)) / "msg" / f"{name}.json"
    hashes = json.loads(file.read_text())["type_hashes"]
    return next(h["hash_string"] for h in hashes if h["type_name"] == type_name)


@pytest.fixture(params=["mcap", "sqlite3"])
def storage(request):
    return request.param


@pytest.fixture
def bag(tmp_path, storage):
    """A drive with ground truth, and a latched message of a type that is Penumbra's own."""
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    write_drive(small_drive(3, labels=labels), tmp_path / "drive", storage)
    types = InstalledTypes()
    types.add(OWN)
    with BagWriter(tmp_path / "answers", storage, {"by": "a test: 1"}, types.store) as answers:
        answers.add_topic("/alert", OWN, latched=True)
        answers.add_topic("/plain", "sensor_msgs/msg/Image", reliable=False)
        for number in range(3):
            answers.write("/alert", OWN, START_NS + number * 10**8, b"\0\1\0\0")
    return tmp_path


@pytest.mark.parametrize("name", ["drive", "answers"])
def test_metadata(bag, storage, name):
    file = f"{name}.{'mcap' if storage == 'mcap' else 'db3'}"
    text = (bag / name / "metadata.yaml").read_text()
    node = yaml.safe_load(text)["rosbag2_bagfile_information"]
    topics = check_metadata(node, storage, file)
    if name == "answers":
        assert topics["/alert"]["offered_qos_profiles"][0]["durability"] == "transient_local"
        assert topics["/plain"]["offered_qos_profiles"][0]["reliability"] == "best_effort"
    # Its copy in the file itself, without the outer key, for a file that has lost its folder.
    if storage == "mcap":
        with (bag / name / file).open("rb") as stream:
            (copy,) = [m for m in make_reader(stream).iter_metadata() if m.name == "rosbag2"]
        embedded = copy.metadata["serialized_metadata"]
    else:
        with sqlite3.connect(bag / name / file) as database:
            query = "SELECT metadata_version, metadata FROM metadata ORDER BY id"
            ((version, embedded),) = database.execute(query)
        assert version == 9
    assert yaml.safe_load(embedded) == node


@pytest.mark.parametrize("storage", ["mcap"], indirect=True)
def test_mcap_has_what_the_plugin_looks_up(bag):
    with (bag / "drive" / "drive.mcap").open("rb") as stream:
        reader = make_reader(stream)
        assert reader.get_header().profile == "ros2"
        summary = reader.get_summary()
    assert summary.statistics.message_count == 9
    assert summary.chunk_indexes and all(c.message_index_offsets for c in summary.chunk_indexes)
    for channel in summary.channels.values():
        assert channel.message_encoding == "cdr"
        (qos,) = yaml.safe_load(channel.metadata["offered_qos_profiles"])
        check_qos(qos)
        assert summary.schemas[channel.schema_id].encoding == "ros2msg"


@pytest.mark.parametrize("storage", ["sqlite3"], indirect=True)
def test_sqlite3_answers_the_plugin_s_queries(bag):
    with sqlite3.connect(bag / "drive" / "drive.db3") as database:
        assert database.execute("SELECT schema_version from schema").fetchall() == [(4,)]
        topics = database.execute(
            "SELECT messages.topic_id, name, type, serialization_format, COUNT(messages.id), "
            "MIN(messages.timestamp), MAX(messages.timestamp), offered_qos_profiles, "
            "type_description_hash FROM messages JOIN topics on topics.id = messages.topic_id "
            "GROUP BY topics.name"
        ).fetchall()
        definitions = database.execute(
            "SELECT topic_type, encoding, encoded_message_definition, type_description_hash FROM "
            "message_definitions ORDER BY id"
        ).fetchall()
        messages = database.execute(
            "SELECT data, timestamp, topics.name, messages.id FROM messages JOIN topics ON "
            "messages.topic_id = topics.id ORDER BY messages.timestamp ASC, messages.id ASC"
        ).fetchall()
    assert [topic[4] for topic in topics] == [3, 3, 3]
    for topic in topics:
        (qos,) = yaml.safe_load(topic[7])
        check_qos(qos)
        assert topic[8] == installed_hash(topic[2])
    assert {(name, encoding) for name, encoding, *_ in definitions} == {
        (topic[2], "ros2msg") for topic in topics
    }
    assert len(messages) == 9
