"""Where everything is: the clone, its environment, its workspace."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOK = Path(__file__).with_name("hook.py")
REQUIREMENTS = Path(__file__).with_name("requirements")
WORKSPACE = ROOT / "ros2_ws"

VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "penumbra-setup.json"
LOCK = ROOT / ".venv.lock"
LOG = ROOT / ".venv.log"
