"""The hook that makes `source` superfluous: what a new Python of the environment sees."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

HOOK = Path(__file__).resolve().parents[1] / "scripts/environment/hook.py"
USE = "import rclpy; from penumbra_msgs.msg import OodAlert; OodAlert.__import_type_support__()"

# What the process was started with is what the dynamic loader has seen; os.environ can be newer.
LOADER_SAW = """
import sys
started_with = open("/proc/self/environ").read().split("\\0")
print([line for line in started_with if line.startswith("LD_LIBRARY_PATH=")], sys.argv[1:])
"""


def python(*arguments: str, executable: Path | str = sys.executable, **environment: str):
    command = [str(executable), *arguments]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)


def test_ros_and_messages_are_there_in_a_plain_shell(shell_environment):
    done = python("-c", USE, **shell_environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_environment_does_not_get_in_the_way(shell_environment):
    """Its children inherit the guard by which the ROS 2 wheels know that they have restarted."""
    foreign = {"_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1", "LD_LIBRARY_PATH": "/another/environment/lib"}
    done = python("-c", USE, **{**shell_environment, **foreign})
    assert (done.returncode, done.stderr) == (0, "")


def test_sourcing_the_workspace_completes_the_shell(shell_environment):
    """For programs that are not .venv's, such as the distribution's `ros2`, the shell has to do."""
    workspace = HOOK.parents[2] / "ros2_ws"
    variables = '"$AMENT_PREFIX_PATH" "$LD_LIBRARY_PATH" "$PYTHONPATH"'
    ask = f'source install/setup.bash && printf "%s\\n" {variables}'
    done = subprocess.run(
        ["bash", "-c", ask], cwd=workspace, env=shell_environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    messages = workspace / "install" / "penumbra_msgs"
    site = messages / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    expected = [messages, messages / "lib", site]
    for variable, path in zip(done.stdout.splitlines(), expected, strict=True):
        assert str(path) in variable.split(":")


@pytest.fixture
def other_python(tmp_path) -> Path:
    """An environment with the hook alone, as under a sourced ROS 2: no wheels restart Python."""
    venv.create(tmp_path / "a venv", with_pip=False)
    site = next((tmp_path / "a venv").glob("lib/python3.*/site-packages"))
    shutil.copy(HOOK, site / "penumbra_environment.py")
    paths = {"LD_LIBRARY_PATH": ["/first place", "/second"], "AMENT_PREFIX_PATH": ["/prefix"]}
    (site / "penumbra_paths.py").write_text(f"WHEELS_RESTART = False\nPATHS = {paths}\n")
    (site / "penumbra_environment.pth").write_text("import penumbra_environment\n")
    return tmp_path / "a venv" / "bin" / "python"


@pytest.mark.parametrize(
    "before, after",
    [
        ("", "/first place:/second"),
        ("/own", "/first place:/second:/own"),
        ("/second", "/first place:/second"),
        ("/second:/first place", "/second:/first place"),
    ],
)
def test_the_loader_sees_the_libraries_and_python_its_arguments(
    other_python, shell_environment, before, after
):
    environment = {**shell_environment, "LD_LIBRARY_PATH": before}
    words = ["--option", "two words", ""]
    done = python("-c", LOADER_SAW, *words, executable=other_python, **environment)
    assert done.stdout == f"{[f'LD_LIBRARY_PATH={after}']} {words}\n"
    assert done.stderr == ""


def test_variables_reach_children(other_python, shell_environment):
    ask = "import subprocess; subprocess.run('echo $AMENT_PREFIX_PATH $VIRTUAL_ENV', shell=True)"
    done = python("-c", ask, executable=other_python, **shell_environment)
    assert done.stdout == f"/prefix {other_python.parents[1]}\n"
