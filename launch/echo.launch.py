"""Start the echo node: every image of `image_topic` comes out again on <namespace>/echo/echo."""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description() -> LaunchDescription:
    """What `ros2 launch penumbra echo.launch.py` starts; `--show-args` lists the arguments."""
    arguments = {
        "image_topic": ("~/image", "sensor_msgs/Image topic to listen to"),
        "namespace": ("", "namespace of the node, e.g. the camera's name"),
        "log_level": ("info", "debug, info, warn, error or fatal"),
    }
    node = Node(
        package="penumbra",
        executable="echo_node",
        name="echo",
        namespace=LaunchConfiguration("namespace"),
        remappings=[("~/image", LaunchConfiguration("image_topic"))],
        arguments=["--ros-args", "--log-level", LaunchConfiguration("log_level")],
        output="screen",
    )
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, (default, description) in arguments.items()
            ),
            node,
        ]
    )
