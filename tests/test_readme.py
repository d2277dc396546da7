"""The README is true: its Python runs, its files exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_python_of_the_readme_runs(tmp_path):
    """The blocks of a page belong together, as a reader would type them one after the other."""
    assert blocks("python")
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("python")))
    namespace = {"__name__": "readme"}
    exec(compile(script.read_text(), str(script), "exec"), namespace)
    assert namespace["full"].covariance.shape == (5, 3, 3)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif not link.startswith("http"):
            assert (ROOT / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_scripts_that_are_named_exist(document):
    text = (ROOT / document).read_text()
    for script in set(re.findall(r"(?<![\w/])((?:scripts|\.ci)/[\w-]+)", text)):
        assert (ROOT / script).exists(), script
