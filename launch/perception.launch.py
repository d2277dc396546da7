"""Start the perception node: camera in; prediction, uncertainty and alerts out.

    ros2 launch penumbra perception.launch.py bundle:=~/bundles/street image_topic:=/front/image_raw

Empty arguments keep the value of the parameter file or the node's default.
"""

from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

# Name: default, description.
ARGUMENTS = {
    "bundle": ("", "folder of a bundle, or name of a model that comes with Penumbra"),
    "runner": ("", "auto, tensorrt, tensorrt-rtx, openvino or onnxruntime"),
    "image_topic": ("", "image topic; {camera} is replaced by the camera's name"),
    "camera_info_topic": ("", "topic of the camera calibration"),
    "compressed": ("", "true: subscribe to <image_topic>/compressed"),
    "cameras": ("", "names of several cameras that share one engine, e.g. front,left"),
    "namespace": ("", "namespace of the node, e.g. the name of the camera"),
    "params_file": ("", "YAML with parameters, e.g. a copy of config/segmentation.yaml"),
    "use_sim_time": ("", "true: use the time of /clock, e.g. of a bag"),
    "guard": ("false", "true: start the guard, which turns alerts into a decision"),
    "guard_params_file": (
        "",
        "YAML with parameters of the guard, e.g. a copy of config/guard.yaml",
    ),
    "rviz": ("false", "true: show input, prediction, uncertainty and overlay in RViz"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
}
# Arguments forwarded as parameters of the same name, unless empty.
TEXTS = ("bundle", "runner", "image_topic", "camera_info_topic", "cameras")
SWITCHES = ("compressed", "use_sim_time")
# Topics of /penumbra that config/penumbra.rviz shows.
SHOWN = ("prediction/color", "uncertainty/color", "overlay", "points")


def is_true(text: str) -> bool:
    """Whether a command-line value means true."""
    return text.strip().lower() in ("true", "1", "yes", "on")


def start(context: LaunchContext) -> list[Node]:
    """The node, guard and RViz if requested; the arguments are known only at launch."""
    given = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    parameters: dict[str, str | bool] = {name: given[name] for name in TEXTS if given[name]}
    parameters |= {name: is_true(given[name]) for name in SWITCHES if given[name]}
    perception = Node(
        package="penumbra",
        executable="perception_node",
        name="penumbra",
        namespace=given["namespace"],
        parameters=[*files(given["params_file"]), parameters],
        arguments=["--ros-args", "--log-level", given["log_level"]],
        output="screen",
    )
    nodes = [perception]
    if is_true(given["guard"]):
        nodes.append(guard(given))
    if is_true(given["rviz"]):
        nodes.append(rviz(given))
    return nodes


def files(name: str) -> list[str]:
    """A parameter file, unless empty."""
    return [str(Path(name).expanduser())] if name else []


def guard(given: dict[str, str]) -> Node:
    """The guard, in a process of its own, for the alerts of all cameras."""
    parameters: dict[str, str | bool] = {}
    if given["cameras"]:
        cameras = given["cameras"].split(",")
        parameters["topics"] = ",".join(f"penumbra/{camera.strip()}/ood" for camera in cameras)
    if given["use_sim_time"]:
        parameters["use_sim_time"] = is_true(given["use_sim_time"])
    return Node(
        package="penumbra",
        executable="guard_node",
        name="penumbra_guard",
        namespace=given["namespace"],
        parameters=[*files(given["guard_params_file"]), parameters],
        arguments=["--ros-args", "--log-level", given["log_level"]],
        output="screen",
    )


def rviz(given: dict[str, str]) -> Node:
    """RViz; the topics of its layout are remapped to those of the first camera."""
    namespace = given["namespace"].strip("/")
    camera = given["cameras"].partition(",")[0]
    node = "/".join(["", *filter(None, [namespace, "penumbra", camera])])
    image = topic_of(given["image_topic"] or "~/{camera}/image", camera, namespace)
    topics = {f"/penumbra/{name}": f"{node}/{name}" for name in SHOWN} | {"/penumbra/image": image}
    layout = PathJoinSubstitution([FindPackageShare("penumbra"), "config", "penumbra.rviz"])
    return Node(
        package="rviz2",
        executable="rviz2",
        arguments=["-d", layout],
        parameters=[{"use_sim_time": is_true(given["use_sim_time"])}],
        remappings=list(topics.items()),
    )


def topic_of(pattern: str, camera: str, namespace: str) -> str:
    """The full topic name that the node derives from its parameter `image_topic`."""
    name = (pattern if camera else pattern.replace("{camera}/", "")).replace("{camera}", camera)
    if name.startswith("/"):
        return name
    name = name.replace("~", "penumbra", 1) if name.startswith("~/") else name
    return "/".join(["", *filter(None, [namespace]), name])


def generate_launch_description() -> LaunchDescription:
    """Entry point of `ros2 launch`; `--show-args` lists the arguments."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, (default, description) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])
