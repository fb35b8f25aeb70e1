"""What Home Assistant is told."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fedfilt.home import assistant
from fedfilt.home.topics import MOST_BYTES, Topics

TOPICS = Topics("villa")


@given(st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=3).map(tuple), min_size=2, max_size=2, unique=True))
def test_different_names_stay_different_and_are_safe_in_topics(names):
    one, other = (assistant.slug(*name) for name in names)
    assert one != other
    assert all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in one)


def test_every_component_has_a_topic_of_its_own():
    labels = ['watching "TV"', "café }} {% x %}", "it's"]
    configs = [
        assistant.room_config(TOPICS, "kitchen", labels, 30),
        assistant.device_config(TOPICS, "watch", labels, 30, battery=True),
    ]
    seen = []
    for content in configs:
        table = json.loads(content)
        assert "state_topic" not in table
        for component in table["components"].values():
            seen.append(component["unique_id"])
            assert component.get("state_topic", "").startswith("fedfilt/villa/") == (component["platform"] == "sensor")
    assert len(set(seen)) == len(seen)
    room, device = map(json.loads, configs)
    assert room["components"]["activity"]["options"] == [*labels, "unknown"]
    assert room["components"]["label"]["options"] == labels
    assert room["components"]["label"]["command_topic"] == TOPICS.label("kitchen")
    assert [where["topic"] for where in room["availability"]] == [TOPICS.edge]
    assert [where["topic"] for where in device["availability"]] == [TOPICS.edge, TOPICS.status("watch")]
    without = json.loads(assistant.device_config(TOPICS, "watch", labels, 30, battery=False))
    assert "battery" not in without["components"]


def test_a_hundred_labels_fit_a_message():
    labels = [f"activity number {number}" for number in range(100)]
    assert len(assistant.room_config(TOPICS, "kitchen", labels, 30)) < MOST_BYTES
    assert len(assistant.device_config(TOPICS, "watch", labels, 30, battery=True)) < MOST_BYTES


def test_only_what_is_of_this_home_is_ours():
    assert assistant.is_ours(TOPICS, assistant.found_at(assistant.room_identity(TOPICS, "a.b")))
    for other in (Topics("villa-room"), Topics("villa2"), Topics("vill")):
        assert not assistant.is_ours(TOPICS, assistant.found_at(assistant.room_identity(other, "a")))
        assert not assistant.is_ours(TOPICS, assistant.found_at(assistant.device_identity(other, "a")))
