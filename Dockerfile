# The vehicle half on Ubuntu 24.04 with ROS 2 Jazzy. NOT BUILT OR TRIED by this project's CI, which has
# no Docker: read it as a recipe.
#
#   docker build -t penumbra .
#   docker run --rm --net=host --ipc=host penumbra ros2 launch penumbra perception.launch.py
#
# --net=host and --ipc=host let DDS reach the other nodes of the vehicle, over shared memory where it can.
FROM ros:jazzy-ros-base

RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential cmake python3-colcon-common-extensions python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /penumbra
COPY . .

# RViz stays outside: a vehicle has no screen.
RUN apt-get update \
    && rosdep update --rosdistro jazzy \
    && rosdep install --from-paths ros2_ws/src --ignore-src --rosdistro jazzy -y --skip-keys rviz2 \
    && rm -rf /var/lib/apt/lists/*

# With ROS 2 sourced, scripts/setup takes the distribution's ROS 2, numpy and OpenCV, and adds the runner.
RUN . /opt/ros/jazzy/setup.sh && scripts/setup run

RUN printf '#!/bin/bash\nset -e\nsource /penumbra/ros2_ws/install/setup.bash\nexec "$@"\n' > /entrypoint.sh \
    && chmod +x /entrypoint.sh
ENTRYPOINT ["/entrypoint.sh"]
CMD ["ros2", "launch", "penumbra", "perception.launch.py"]
