"""Bags that are made to stop or to take over their reader: one line each, within limits."""

from __future__ import annotations

import contextlib
import random
import struct

import lz4.frame
import pytest
from hostile_bags import (
    BOMB,
    MESSAGES,
    NUMBERS,
    ONE_MESSAGE,
    ONE_TOPIC,
    STRING,
    TOPICS,
    db3_of,
    mcap_chunk,
    mcap_of,
    mcap_record,
    metadata_of,
    read_within_limits,
    ros1_connection,
    ros1_of,
    ros1_record,
    ros1_repeating,
    zstd_bomb,
)
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore
from small_drives import ros1_bag, small_drive

from penumbra.bags import definition_text, open_bag, translation, write_drive
from penumbra.bags.limits import LARGEST_CHUNK, MOST_TOPICS
from penumbra.errors import PenumbraError

GIB = 2**30
MCAP = b"\x89MCAP0\r\n"


def refusal(path) -> str:
    """The only line about a bag from which nothing is read."""
    outcome = read_within_limits(path)
    assert outcome.messages == 0
    (line,) = outcome.lines
    assert str(path) in line
    return line


def file(tmp_path, name: str, data: bytes):
    path = tmp_path / name
    path.write_bytes(data)
    return path


BOMBS = {
    "bz2 of 1,521 bytes": ("a.bag", lambda: ros1_of(BOMB.read_bytes(), "bz2", 1000)),
    "bz2 that tells its size": ("a.bag", lambda: ros1_of(BOMB.read_bytes(), "bz2", 2**31)),
    "zstd that claims 8 GB": ("a.mcap", lambda: mcap_chunk("zstd", zstd_bomb(8 * GIB, True))),
    "zstd that claims nothing": ("a.mcap", lambda: mcap_chunk("zstd", zstd_bomb(8 * GIB, False))),
    "lz4 of 300 MiB": ("a.mcap", lambda: mcap_chunk("lz4", lz4.frame.compress(bytes(300 << 20)))),
    "lz4 in ROS 1": ("a.bag", lambda: ros1_of(lz4.frame.compress(bytes(300 << 20)), "lz4", 9)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_decompression_bombs(tmp_path, kind):
    name, make = BOMBS[kind]
    assert "the limit is 256 MiB" in refusal(file(tmp_path, name, make()))


def test_many_small_bombs_in_one_file(tmp_path):
    """Each chunk is within its limit; all together are not."""
    size = LARGEST_CHUNK // 2
    one_record = zstd_bomb(9 + size, False, begin=struct.pack("<BQ", 127, size))
    bomb = mcap_chunk("zstd", one_record)[len(MCAP) :]
    path = file(tmp_path, "a.mcap", MCAP + bomb * 40)
    assert "unpacks to more than 50 times its size" in refusal(path)


@pytest.mark.parametrize("name", ["a.mcap.zstd", "a.db3.zstd"])
def test_a_bomb_as_a_whole_file(tmp_path, name):
    bag = tmp_path / "bag"
    bag.mkdir()
    (bag / name).write_bytes(zstd_bomb(8 * GIB, True, begin=MCAP))
    metadata_of(bag, name)
    assert "no message can be recovered" in refusal(bag)  # zstd itself refuses so large a window
    (bag / name).write_bytes(zstd_bomb(8 * GIB, False, begin=MCAP))
    assert f"{bag / name} unpacks to more than 50 times its size" in refusal(bag)
    (bag / "metadata.yaml").unlink()
    assert f"{bag / name} unpacks to more than 50 times its size" in refusal(bag)


def test_a_message_that_is_a_bomb(tmp_path):
    bomb = zstd_bomb(8 * GIB, True)
    path = mcap_of(
        tmp_path / "a.mcap", [("std_msgs/msg/String", "ros2msg", "string data")], data=bomb
    )
    assert "the limit is 256 MiB" in refusal(path)


def test_a_packed_file_alone_is_no_bag(tmp_path):
    path = file(tmp_path, "a.mcap.zstd", zstd_bomb(8 * GIB, True))
    assert "is not a bag: give a rosbag2 folder" in refusal(path)


ROWS = "SELECT x AS id, 1 AS topic_id, x AS timestamp, x'00' AS data FROM n"
PROGRAMS = {
    "a recursive view": [TOPICS, ONE_TOPIC, f"CREATE VIEW messages AS {NUMBERS} {ROWS}"],
    "a view of topics": [
        MESSAGES,
        ONE_MESSAGE,
        f"CREATE VIEW topics AS {NUMBERS} SELECT x AS id, 'a' AS name, 'b' AS type FROM n",
    ],
    "a view of definitions": [
        *(TOPICS, MESSAGES, ONE_TOPIC, ONE_MESSAGE),
        f"CREATE VIEW message_definitions AS {NUMBERS} SELECT x AS topic_type, 'ros2msg' AS"
        " encoding, '' AS encoded_message_definition FROM n",
    ],
    "a virtual table": [
        *(TOPICS, ONE_TOPIC, "CREATE VIRTUAL TABLE messages USING fts5(topic_id, timestamp, data)"),
        f"INSERT INTO messages VALUES(1, 1, x'{STRING.hex()}')",
    ],
    "a computed column": [
        *(TOPICS, ONE_TOPIC),
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id, timestamp,"
        " data AS (zeroblob(100000000)))",
        "INSERT INTO messages(id, topic_id, timestamp) VALUES(1, 1, 1)",
    ],
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_in_a_database_are_not_run(tmp_path, kind):
    path = db3_of(tmp_path / "a.db3", *PROGRAMS[kind])
    assert "must be a plain table, but is a view, virtual or computed" in refusal(path)


def test_triggers_and_other_views_are_data_that_nobody_asks(tmp_path):
    path = db3_of(
        tmp_path / "a.db3", TOPICS, MESSAGES, ONE_TOPIC, ONE_MESSAGE,
        "CREATE TRIGGER t AFTER INSERT ON topics BEGIN DELETE FROM messages; END",
        f"CREATE VIEW endless AS {NUMBERS} {ROWS}",
        "CREATE INDEX i ON messages (timestamp)",
    )  # fmt: skip
    before = path.read_bytes()
    outcome = read_within_limits(path)
    assert (outcome.messages, outcome.lines) == (1, [])
    assert path.read_bytes() == before


def test_a_row_that_says_it_is_gigabytes(tmp_path):
    path = db3_of(
        tmp_path / "a.db3", TOPICS, MESSAGES, ONE_TOPIC,
        "INSERT INTO messages VALUES(1, 1, 1, zeroblob(300000000))",
    )  # fmt: skip
    assert "has a value of more than 256 MiB" in refusal(path)


@pytest.mark.parametrize("table", ["topics", "message_definitions"])
def test_a_database_of_thousands_of_topics(tmp_path, table):
    names = "x + 1, '/t' || x, 'a/msg/B', 'cdr', ''"
    many = {
        "topics": f"INSERT INTO topics {NUMBERS} SELECT {names} FROM n LIMIT 100000",
        "message_definitions": f"CREATE TABLE message_definitions AS {NUMBERS} SELECT"
        " 'a/msg/B' || x AS topic_type, 'ros2msg' AS encoding, 'int8 a' AS"
        " encoded_message_definition FROM n LIMIT 100000",
    }
    path = db3_of(tmp_path / "a.db3", TOPICS, MESSAGES, ONE_TOPIC, ONE_MESSAGE, many[table])
    assert f"more than {MOST_TOPICS} topics" in refusal(path)


@pytest.mark.parametrize("many", [MOST_TOPICS, MOST_TOPICS + 1])
def test_an_mcap_of_thousands_of_topics(tmp_path, many):
    schemas = [(f"a/msg/T{n}", "ros2msg", "int8 a") for n in range(many)]
    outcome = read_within_limits(mcap_of(tmp_path / "a.mcap", schemas))
    if many > MOST_TOPICS:
        assert outcome.messages == 0
        assert f"more than {MOST_TOPICS} topics" in outcome.error
    else:
        assert outcome.messages == many
        assert len(outcome.lines) < 10


def test_a_ros1_bag_of_thousands_of_topics(tmp_path):
    chunk = b"".join(ros1_connection(number) for number in range(MOST_TOPICS + 1))
    assert f"more than {MOST_TOPICS} topics" in refusal(file(tmp_path, "a.bag", ros1_of(chunk)))


def test_an_index_that_names_one_message_again_and_again(tmp_path):
    whole = read_within_limits(file(tmp_path, "one.bag", ros1_repeating(1000, 1)))
    assert (whole.messages, whole.lines) == (1, [])
    outcome = read_within_limits(file(tmp_path, "a.bag", ros1_repeating(10**6, 10**5)))
    assert "unpacks to more than 50 times its size" in outcome.error
    assert outcome.messages < 500


LONG_MESSAGE = ros1_connection() + ros1_record({"op": b"\2"}, b"", 2**32 - 1)
HUGE = {
    "an MCAP record of 2^63 bytes": ("a.mcap", MCAP + mcap_record(5, b"", 2**63)),
    "an MCAP record of 1 TB": ("a.mcap", MCAP + mcap_record(3, b"", 10**12)),
    "an MCAP chunk of 2^64 - 1 bytes": ("a.mcap", mcap_chunk("", b"", 2**64 - 1)),
    "a ROS 1 record of 4 GB": ("a.bag", ros1_of(LONG_MESSAGE)),
    "a ROS 1 header of 4 GB": ("a.bag", b"#ROSBAG V2.0\n" + b"\xff" * 40),
}  # fmt: skip


@pytest.mark.parametrize("kind", HUGE)
def test_records_of_absurd_sizes(tmp_path, kind):
    name, data = HUGE[kind]
    refusal(file(tmp_path, name, data))


def test_records_without_content(tmp_path):
    """Nine bytes each: more of them than a recording of that size has."""
    path = file(tmp_path, "a.mcap", MCAP + mcap_chunk("zstd", zstd_bomb(200 << 20, False))[8:])
    assert "far more records than its size allows" in refusal(path)


CODE = '__import__("pathlib").Path("taken over").touch()'
NAME = f"a/msg/B({CODE} or object)"  # `class a__msg__B(…):`, if rosbags gets it
INJECTIONS = {
    "the name of a type": (NAME, "ros2msg", "int8 a"),
    "the name of an inner type": (
        *("a/msg/B", "ros2msg"),
        f"int8 c\n{'=' * 80}\nMSG: {NAME}\nint8 a",
    ),
    "the end of a docstring": (f'a/msg/B"""\n    {CODE}\n    """', "ros2msg", "int8 a"),
    "a name in quotes": (f"a/msg/B': ([], []), {CODE}: 0, 'c", "ros2msg", "int8 a"),
    "the name of a field": ("a/msg/B", "ros2msg", f"int8 a={CODE}\nint8 {CODE}"),
    "the value of a constant": ("a/msg/B", "ros2msg", f"string A='); {CODE} #\nint8 a"),
    "a default": ("a/msg/B", "ros2msg", f'string a "{CODE}"'),
    "the length of an array": ("a/msg/B", "ros2msg", f"int8[{CODE}] a"),
    "IDL": ("a/msg/B", "ros2idl",
            f'module a {{ struct B {{ @default(value="{CODE}") octet a; }}; }};'),
}  # fmt: skip


@pytest.mark.parametrize("kind", INJECTIONS)
def test_code_in_a_definition_is_not_run(tmp_path, kind):
    path = mcap_of(tmp_path / "a.mcap", [INJECTIONS[kind]])
    outcome = read_within_limits(path)
    assert outcome.messages == 1  # as bytes, which nobody needs the definition for
    assert len(outcome.lines) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.mcap"]


def test_rosbags_executes_a_name_that_is_not_one(tmp_path, monkeypatch):
    """What the check of names prevents, should the grammar of rosbags let such a name through."""
    monkeypatch.chdir(tmp_path)
    hostile = {NAME: ([], [("a", (Nodetype.BASE, ("int8", 0)))])}
    with contextlib.suppress(AttributeError):
        get_typestore(Stores.EMPTY).register(hostile)
    (tmp_path / "taken over").unlink()
    monkeypatch.setattr(definition_text, "get_types_from_msg", lambda *_: hostile)
    path = mcap_of(tmp_path / "a.mcap", [("a/msg/B", "ros2msg", "int8 a")])
    told: list[str] = []
    with open_bag(path, told.append) as bag:
        assert len(list(bag.raw())) == 1
    assert "is not the name of a type" in told[0]
    assert not (tmp_path / "taken over").exists()


RULE = "=" * 80
CHAIN = "".join(f"\n{RULE}\nMSG: a/T{n}\na/T{n + 1} t" for n in range(1, 60))
WIDE = f"\n{RULE}\nMSG: a/C\nint8 a\nint8 b"
DEFINITIONS = {
    "a type in itself": ("B b", "contains itself"),
    "two types in each other": (f"a/C c\n{RULE}\nMSG: a/C\na/B b", "contains itself"),
    "a sequence of itself": ("B[] b", "contains itself"),
    "a chain": (f"a/T1 t{CHAIN}\n{RULE}\nMSG: a/T60\nint8 a", "nested deeper than 32"),
    "an array of 10^9 messages": (f"a/C[1000000000] c{WIDE}", "too many values"),
    "an array of 10^9 strings": ("string[1000000000] c", "too many values"),
    "arrays of arrays": (
        f"a/C[100] c\n{RULE}\nMSG: a/C\na/D[100] d\n{RULE}\nMSG: a/D\na/E[100] e"
        f"\n{RULE}\nMSG: a/E\nint8 a",
        "too many values",
    ),
    "a sequence of nothing": (f"a/C[] c\n{RULE}\nMSG: a/C\n", "empty"),
    "thousands of fields": ("\n".join(f"int8 a{n}" for n in range(5000)), "more than 500 members"),
    "two megabytes": ("# " + "x" * 2**21, "the limit is 1048576"),
    "a long line": ("int8 " + "a" * 10**6, "characters|not the name"),
}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_definitions_that_do_not_end(tmp_path, kind):
    text, why = DEFINITIONS[kind]
    data = STRING[:4] + b"\xff" * 64
    outcome = read_within_limits(mcap_of(tmp_path / "a.mcap", [("a/msg/B", "ros2msg", text)], data))
    (line,) = outcome.warnings
    assert outcome.error is None
    assert "the definition of a/msg/B cannot be read" in line
    assert any(each in line for each in why.split("|"))


IDL = {
    "parentheses": "module a { struct B { long x; }; const long C = ((((((((1)))))))); };",
    "thousands of values": "module a { struct B { "
    + " ".join(f"long x{n}[2];" for n in range(3000))
    + " }; };",
    "recursion": "module a { module msg { struct B { a::msg::B b; }; }; };",
}


@pytest.mark.parametrize("kind", IDL)
def test_idl_that_does_not_end(tmp_path, kind):
    outcome = read_within_limits(mcap_of(tmp_path / "a.mcap", [("a/msg/B", "ros2idl", IDL[kind])]))
    (line,) = outcome.warnings
    assert outcome.error is None and "the definition of a/msg/B cannot be read" in line


def test_a_definition_that_rosbags_fails_on_is_one_line(tmp_path, monkeypatch):
    def fail(*_):
        raise RecursionError("deep")

    monkeypatch.setattr(translation.DefinitionReader, "types", fail)
    told: list[str] = []
    path = mcap_of(tmp_path / "a.mcap", [("a/msg/B", "ros2msg", "int8 a")])
    with open_bag(path, told.append) as bag:
        assert len(list(bag.raw())) == 1
    assert told == [f"{path}: the definition of a/msg/B cannot be read: deep"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_drive(small_drive(3), folder / "mcap")
    write_drive(small_drive(3), folder / "sqlite3", "sqlite3")
    ros1_bag(folder / "a.bag")
    ros1_bag(folder / "packed.bag", compression="BZ2")
    files = [folder / "mcap" / "mcap.mcap", folder / "sqlite3" / "sqlite3.db3"]
    return [*files, folder / "a.bag", folder / "packed.bag"]


def test_every_place_where_a_bag_can_be_cut_or_changed(whole, tmp_path):
    """In this process, since there are many; tests/fuzzing goes further."""
    chance = random.Random(0)
    for original in whole:
        data = original.read_bytes()
        path = tmp_path / original.name
        for number in range(60):
            changed = bytearray(data)
            if number % 2:
                del changed[chance.randrange(len(data)) :]
            else:
                place = chance.randrange(len(data) - 8)
                struct.pack_into("<Q", changed, place, chance.choice([0, 1, 2**31, 2**64 - 1]))
            path.write_bytes(changed)
            told: list[str] = []
            try:
                with open_bag(path, told.append) as bag:
                    for _ in bag.raw():
                        pass
            except PenumbraError as error:
                told.append(str(error))
            assert all(line.isprintable() for line in told)
