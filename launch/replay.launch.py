"""Play a bag into the perception node and show the results in RViz, on the bag's clock.

    ros2 launch penumbra replay.launch.py bag:=drive bundle:=~/bundles/street \
        image_topic:=/front/image_raw

All arguments of perception.launch.py are accepted, too.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

# Name: default (None: required), description.
ARGUMENTS = {
    "bag": (None, "rosbag2 to play"),
    "rate": ("1.0", "playback rate; 0.5 is half the recorded speed"),
    "rviz": ("true", "true: show input, prediction, uncertainty and overlay in RViz"),
}


def generate_launch_description() -> LaunchDescription:
    """Entry point of `ros2 launch`; `--show-args` lists the arguments."""
    share = FindPackageShare("penumbra")
    perception = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(
            PathJoinSubstitution([share, "launch", "perception.launch.py"])
        ),
        launch_arguments={"use_sim_time": "true", "rviz": LaunchConfiguration("rviz")}.items(),
    )
    play = ExecuteProcess(
        # --clock: simulated time. The delay allows discovery before the first image.
        cmd=[
            *("ros2", "bag", "play", LaunchConfiguration("bag")),
            *("--clock", "100", "--delay", "3", "--rate", LaunchConfiguration("rate")),
        ],
        output="screen",
    )
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, (default, description) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, perception, play])
