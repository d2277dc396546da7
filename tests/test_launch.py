"""Launch files, tested without `launch`, which is not on PyPI.

A stand-in records what they declare and start. They were also run with launch and launch_ros of
Jazzy.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from penumbra.vehicle.node.guard_parameters import guard_parameters
from penumbra.vehicle.node.parameters import parameters

ROOT = Path(__file__).resolve().parents[1]


class Recorded(SimpleNamespace):
    """Any class of `launch`: records its arguments."""

    def __init__(self, *arguments, **options):
        super().__init__(arguments=arguments, options=options)


@pytest.fixture
def launch(monkeypatch):
    """Run a launch file with these values of `LaunchConfiguration`."""
    given: dict[str, str] = {}

    class LaunchConfiguration(Recorded):
        def perform(self, context):
            return given[self.arguments[0]]

    names = {
        "launch": "LaunchContext LaunchDescription",
        "launch.actions": "DeclareLaunchArgument OpaqueFunction ExecuteProcess "
        "IncludeLaunchDescription",
        "launch.launch_description_sources": "PythonLaunchDescriptionSource",
        "launch.substitutions": "PathJoinSubstitution",
        "launch_ros": "",
        "launch_ros.actions": "Node",
        "launch_ros.substitutions": "FindPackageShare",
    }
    for module_name, members in names.items():
        module = ModuleType(module_name)
        for member in members.split():
            setattr(module, member, type(member, (Recorded,), {}))
        monkeypatch.setitem(sys.modules, module_name, module)
    sys.modules["launch.substitutions"].LaunchConfiguration = LaunchConfiguration

    def run(name: str, **arguments: str):
        namespace = runpy.run_path(str(ROOT / "launch" / name))
        (entities,) = namespace["generate_launch_description"]().arguments
        declared = {
            e.arguments[0]: e.options["default_value"]
            for e in entities
            if type(e).__name__ == "DeclareLaunchArgument"
        }
        given.clear()
        given.update({**declared, **arguments})
        return namespace, declared, entities

    return run


def start(entities) -> list[Recorded]:
    (function,) = (e for e in entities if type(e).__name__ == "OpaqueFunction")
    return function.options["function"](None)


def test_perception_forwards_only_given_arguments(launch):
    namespace, declared, entities = launch("perception.launch.py", bundle="b", compressed="true")
    assert set(declared) == {
        *("bundle", "runner", "image_topic", "camera_info_topic", "compressed", "cameras"),
        *("namespace", "params_file", "use_sim_time", "rviz", "log_level"),
        *("guard", "guard_params_file"),
    }
    passed = {*namespace["TEXTS"], *namespace["SWITCHES"]} - {"use_sim_time"}
    assert passed <= set(parameters())
    (node,) = start(entities)
    assert node.options["parameters"] == [{"bundle": "b", "compressed": True}]
    assert node.options["executable"] == "perception_node"


def test_the_guard_watches_all_cameras_beside_the_node(launch):
    given = {"guard": "true", "namespace": "car", "guard_params_file": "g.yaml"}
    _, _, entities = launch("perception.launch.py", **given)
    node, guard = start(entities)
    assert guard.options["executable"] == "guard_node"
    assert guard.options["namespace"] == node.options["namespace"] == "car"
    assert guard.options["parameters"] == ["g.yaml", {}]  # the default topic is relative
    assert node.options["parameters"] == [{}]
    _, _, entities = launch("perception.launch.py", cameras="front,left", use_sim_time="1", **given)
    _, guard = start(entities)
    topics = "penumbra/front/ood,penumbra/left/ood"
    assert guard.options["parameters"][1] == {"topics": topics, "use_sim_time": True}
    assert set(guard.options["parameters"][1]) - {"use_sim_time"} <= set(guard_parameters())


def test_rviz_topics_are_remapped_to_the_first_camera(launch):
    given = {"rviz": "True", "namespace": "/car/", "cameras": "front,left", "params_file": "p.yaml"}
    _, _, entities = launch("perception.launch.py", image_topic="/{camera}/image_raw", **given)
    node, rviz = start(entities)
    assert node.options["parameters"][0] == "p.yaml"
    sent = dict(rviz.options["remappings"])
    assert sent["/penumbra/overlay"] == "/car/penumbra/front/overlay"
    assert sent["/penumbra/image"] == "/front/image_raw"
    layout = yaml.safe_load((ROOT / "config/penumbra.rviz").read_text())
    shown = {d["Topic"]["Value"] for d in layout["Visualization Manager"]["Displays"]}
    assert shown == set(sent)


@pytest.mark.parametrize(
    "image_topic, cameras, sent",
    [
        ("", "", "/car/penumbra/image"),
        ("", "front,left", "/car/penumbra/front/image"),
        ("/{camera}/image_raw", "", "/image_raw"),
        ("~/input", "", "/car/penumbra/input"),
        ("camera/image_raw", "", "/car/camera/image_raw"),
    ],
)
def test_rviz_shows_the_input_images_of_the_node(launch, image_topic, cameras, sent):
    given = {"rviz": "true", "namespace": "car", "cameras": cameras, "image_topic": image_topic}
    _, _, entities = launch("perception.launch.py", **given)
    _, rviz = start(entities)
    assert dict(rviz.options["remappings"])["/penumbra/image"] == sent


def test_replay_includes_an_existing_file_and_uses_simulated_time(launch):
    _, declared, entities = launch("replay.launch.py", bag="drive")
    assert set(declared) == {"bag", "rate", "rviz"} and declared["bag"] is None
    included, play = entities[-2:]
    (source,) = included.arguments
    (path,) = source.arguments
    assert (ROOT / Path(*path.arguments[0][1:])).is_file()
    assert dict(included.options["launch_arguments"])["use_sim_time"] == "true"
    assert play.options["cmd"][:3] == ["ros2", "bag", "play"]
    assert "--clock" in play.options["cmd"]
