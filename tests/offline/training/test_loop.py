"""The training loop: killed, stopped, resumed, branched, distributed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from penumbra.cli.main import main
from penumbra.errors import PenumbraError
from penumbra.offline.models import load_model, read_header
from penumbra.offline.training.distributed import DistributedContext
from penumbra.offline.training.loop import _Order, train
from penumbra.offline.training.settings import TrainingSettings
from penumbra.offline.training.state import load_state

TINY = "--width 0.0625 --dropout-rate 0.2 --crop 64x32 --batch 4 --warmup 3 --threads 1 --rate 3e-3"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}


def penumbra(*words: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "penumbra.cli.main", *words]
    return subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def begin(folder: Path, data: Path, *more: str) -> list[str]:
    return ["train", "segnet", "--data", str(data), "--run", str(folder), *TINY.split(), *more]


def proceed(folder: Path, *more: str) -> list[str]:
    """The words that continue a run: it remembers the rest."""
    return ["train", "segnet", "--run", str(folder), *more]


def wait_for(process: subprocess.Popen, text: str) -> None:
    """Read the output of the process until it contains `text`."""
    assert any(text in line for line in process.stderr), f"no {text!r} in its output"


def assert_same_state(first: Path, second: Path) -> None:
    """Weights, averaged weights, optimizer: every tensor equal bit for bit."""

    def flat(value, path=""):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from flat(inner, f"{path}/{key}")
        elif isinstance(value, list):
            for key, inner in enumerate(value):
                yield from flat(inner, f"{path}/{key}")
        else:
            yield path, value

    mine, theirs = dict(flat(load_state(first))), dict(flat(load_state(second)))
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        same = (
            torch.equal(value, theirs[key]) if isinstance(value, Tensor) else value == theirs[key]
        )
        assert same, key


STEPS = ["--steps", "24", "--decay-steps", "6", "--validate-every", "8", "--save-every", "5"]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(blocks, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(begin(whole, blocks, *STEPS)) == 0

    process = penumbra(*begin(killed, blocks, *STEPS))
    wait_for(process, "step 16:")  # validated at 16, last saved at 15
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert load_state(killed)["step"] in (15, 20)  # it may have got as far as the next one

    assert main(proceed(killed)) == 0
    assert load_state(killed)["step"] == 24
    assert_same_state(whole, killed)
    assert load_model(killed / "best").config == load_model(whole / "best").config
    logs = [
        [line for line in map(json.loads, (run / "metrics.jsonl").open()) if "validation" in line]
        for run in (whole, killed)
    ]
    assert logs[0] == logs[1] and [line["step"] for line in logs[0]] == [8, 16, 24]


@pytest.mark.slow
def test_a_stopped_run_saves_its_state_and_resumes(blocks, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(begin(whole, blocks, *STEPS)) == 0
    process = penumbra(*begin(stopped, blocks, *STEPS, "--save-every", "1000"))
    wait_for(process, "step 8:")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 0 and "interrupted at step" in output
    assert 8 <= load_state(stopped)["step"] < 24
    assert main(proceed(stopped)) == 0
    assert_same_state(whole, stopped)


def test_an_open_ended_run_can_be_annealed_on_a_branch(blocks, tmp_path):
    stable, branch = tmp_path / "stable", tmp_path / "branch"
    # Ended after 10 steps at the full rate, as if stopped there.
    some = ["--steps", "10", "--decay-steps", "0", "--validate-every", "100", "--log-every", "1"]
    assert main(begin(stable, blocks, *some)) == 0
    before = load_state(stable)
    finish = ["--branch-from", str(stable), "--finish", "--decay-steps", "5"]
    assert main(proceed(branch, *finish)) == 0
    after = load_state(stable)
    weight = "classifier.weight"
    assert before["step"] == after["step"] == 10
    assert torch.equal(before["model"][weight], after["model"][weight])
    assert not torch.equal(load_state(branch)["model"][weight], after["model"][weight])
    assert load_state(branch)["step"] == 15
    rates = [json.loads(line).get("rate") for line in (branch / "metrics.jsonl").open()]
    rates = [rate for rate in rates if rate is not None]
    # Logged behind each step, so each line shows the next step's rate: falling to zero.
    assert len(rates) == 5 and rates == sorted(rates, reverse=True) and rates[-1] == 0.0
    assert rates[0] < 3e-3


def test_other_weights_do_not_fit_a_run(blocks, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(begin(run, blocks, "--steps", "1")) == 0
    assert main(proceed(run, "--width", "0.125", "--steps", "2")) == 2
    assert "belongs to another network" in capsys.readouterr().err
    assert (
        main([*begin(tmp_path / "b", blocks), "--init", str(run / "best"), "--withhold", "car"])
        == 2
    )
    assert "other classes" in capsys.readouterr().err


def test_class_dropout_starts_from_encdec_weights(blocks, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(begin(first, blocks, "--steps", "2")) == 0
    fine = ["--init", str(first / "last"), "--dropout", "class", "--rate", "0", "--steps", "1"]
    assert main(begin(second, blocks, *fine, "--weight-decay", "0")) == 0
    one, two = load_model(first / "last"), load_model(second / "last")
    assert two.config["dropout"] == "class"
    assert torch.equal(one.classifier.weight, two.classifier.weight)


def test_weights_contain_their_provenance_without_local_paths(blocks, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(begin(first, blocks, "--steps", "3", "--seed", "7")) == 0
    assert main(begin(second, blocks, "--steps", "1", "--init", str(first / "last"))) == 0
    earlier, later = (read_header(run / "last").provenance for run in (first, second))
    assert later["began_with"] == earlier
    assert (earlier["seed"], earlier["data"], earlier["step"]) == (7, "blocks", 3)
    assert earlier["epochs"] == 2.0  # 3 steps of 4 frames; there are 6
    assert earlier["options"]["width"] == 0.0625
    assert earlier["validation"].keys() >= {"mean_iou"}
    assert str(tmp_path) not in json.dumps(later)


def test_bad_frames_stop_the_run_or_are_counted(blocks, tmp_path, capsys):
    (blocks / "train" / "train1.png").write_bytes(b"rubbish")
    assert main(begin(tmp_path / "run", blocks, "--steps", "1")) == 2
    assert "train1.png is not a complete" in capsys.readouterr().err
    assert main(begin(tmp_path / "run", blocks, "--steps", "1", "--skip-bad")) == 0
    output = capsys.readouterr()
    assert "skipped 1 of 9 frames" in output.out and "train1.png" in output.err


def test_a_broken_state_is_named(blocks, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(begin(run, blocks, "--steps", "1")) == 0
    (run / "state.pt").write_bytes((run / "state.pt").read_bytes()[:1000])
    assert main(proceed(run)) == 2
    assert "state.pt cannot be read" in capsys.readouterr().err


def test_a_full_disk_is_named_and_the_old_state_survives(blocks, tmp_path):
    """A limit on file sizes makes the real write fail half-way, as a full disk does."""
    run = tmp_path / "run"
    assert main(begin(run, blocks, "--steps", "1")) == 0
    before = (run / "state.pt").read_bytes()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    process = penumbra(*proceed(run, "--steps", "2"), preexec_fn=limit)
    _, error = process.communicate()
    assert process.returncode == 2
    assert "cannot write" in error and str(run) in error and "Traceback" not in error
    assert (run / "state.pt").read_bytes() == before
    assert not list(run.rglob(".*")), "a half-written file was left behind"


class Line(Dataset):
    """y = 2 x₀ - 1, with three inputs that do not matter."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        x = np.random.default_rng(key).normal(size=4).astype(np.float32)
        return x, (2 * x[:1] - 1).astype(np.float32)


class LineTask:
    """Another task than segmentation, small enough to follow; it is judged by `figures`."""

    metric = "score"

    def __init__(self, figures: list[float] | None = None) -> None:
        torch.manual_seed(0)
        self.model = SavedLinear()
        self.figures = iter(figures or [])

    def data(self) -> Dataset:
        return Line()

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def validate(self, model: nn.Module) -> dict[str, float]:
        assert not model.training
        return {"score": next(self.figures, 0.0)}


class SavedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.config = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.fixture
def linear_is_known(monkeypatch):
    known = sys.modules["penumbra.offline.models"].ARCHITECTURES
    monkeypatch.setitem(known, "line", "tests:SavedLinear")


def test_early_stopping(tmp_path, linear_is_known):
    task = LineTask([0.1, 0.3, 0.2, 0.25, 0.29, 0.9])
    settings = TrainingSettings(batch=4, validate_every=2, patience=3, log_every=2)
    outcome = train(task, settings, tmp_path)
    # Best at the second validation (step 4); three more without a better one: step 10.
    assert (outcome.step, outcome.reason, outcome.best) == (10, "no progress", 0.3)


def test_a_loss_that_is_not_finite_is_an_error(tmp_path, linear_is_known):
    settings = TrainingSettings(
        optimizer="sgd", rate=1e30, batch=4, warmup=0, log_every=1, steps=20
    )
    with pytest.raises(PenumbraError, match="lower the learning rate"):
        train(LineTask(), settings, tmp_path)


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 0.05), ("muon", 0.05), ("sgd", 0.05)])
def test_the_annealed_average_is_the_solution(tmp_path, linear_is_known, optimizer, rate):
    settings = TrainingSettings(
        optimizer, rate, 0.0, batch=8, warmup=5, steps=400, decay_steps=200, average=0.9
    )
    train(LineTask(), settings, tmp_path)
    averaged = load_state(tmp_path)["average"]
    # The data have no noise, so the loss has its zero at y = 2 x₀ - 1 and nowhere else.
    torch.testing.assert_close(
        averaged["linear.weight"], torch.tensor([[2.0, 0.0, 0.0, 0.0]]), rtol=0, atol=1e-3
    )
    torch.testing.assert_close(averaged["linear.bias"], torch.tensor([-1.0]), rtol=0, atol=1e-3)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_settings_can_change_on_resumption_and_the_data_continue(tmp_path, linear_is_known):
    common = {"optimizer": "sgd", "rate": 0.1, "warmup": 0, "decay_steps": 0}
    train(LineTask(), TrainingSettings(batch=4, steps=3, weight_decay=0.0, **common), tmp_path)
    before = load_state(tmp_path)
    task, seen = LineTask(), []
    task.loss = lambda model, batch: (seen.append(batch[0]), 0 * model(batch[0]).sum())[1]
    train(task, TrainingSettings(batch=2, steps=4, weight_decay=0.5, **common), tmp_path)
    after = load_state(tmp_path)
    assert (before["seen"], after["seen"]) == (12, 14)
    keys = [(1, int(i)) for i in np.random.default_rng((0, 1)).permutation(12)[:2]]
    np.testing.assert_array_equal(seen[0].numpy(), np.stack([Line()[key][0] for key in keys]))
    # The only gradient is that of the new decay, the momentum is the old one (Nesterov's form):
    # v ← 0.9 v + g, w ← w - rate (g + 0.9 v), with g = 0.5 w.
    weight = before["model"]["linear.weight"]
    velocity = before["optimizer"]["state"][0]["momentum_buffer"]
    gradient = 0.5 * weight
    expected = weight - 0.1 * (gradient + 0.9 * (0.9 * velocity + gradient))
    torch.testing.assert_close(after["model"]["linear.weight"], expected)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_every_optimizer_resumes_exactly(tmp_path, linear_is_known, optimizer):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    common = {"optimizer": optimizer, "rate": 0.05, "batch": 4, "warmup": 0, "decay_steps": 0}
    train(LineTask(), TrainingSettings(steps=6, validate_every=6, **common), whole)
    train(LineTask(), TrainingSettings(steps=3, validate_every=6, **common), parted)
    train(LineTask(), TrainingSettings(steps=6, validate_every=6, **common), parted)
    for part in ("model", "average"):
        mine, theirs = load_state(whole)[part], load_state(parted)[part]
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_another_optimizer_cannot_resume(tmp_path, linear_is_known):
    train(LineTask(), TrainingSettings(steps=1), tmp_path)
    with pytest.raises(PenumbraError, match="another network or optimizer"):
        train(LineTask(), TrainingSettings(steps=2, optimizer="sgd"), tmp_path)


def test_an_unknown_optimizer_is_named(tmp_path):
    with pytest.raises(PenumbraError, match="'lion': adamw, muon or sgd"):
        train(LineTask(), TrainingSettings(optimizer="lion"), tmp_path)


@pytest.mark.parametrize(
    ("precision", "computed"), [("auto", torch.float32), ("bf16", torch.bfloat16)]
)
def test_mixed_precision_keeps_weights_in_float32(tmp_path, linear_is_known, precision, computed):
    task, seen = LineTask(), set()

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        out = model(batch[0])
        seen.add(out.dtype)
        return nn.functional.mse_loss(out.float(), batch[1])

    task.loss = loss
    train(task, TrainingSettings(precision=precision, steps=2, batch=4), tmp_path)
    assert seen == {computed}
    assert load_state(tmp_path)["model"]["linear.weight"].dtype == torch.float32


def test_an_unknown_precision_is_named(tmp_path):
    with pytest.raises(PenumbraError, match="'int4': auto, fp32, fp16, bf16"):
        train(LineTask(), TrainingSettings(precision="int4"), tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_items_come_in_their_order_with_any_number_of_workers(tmp_path, workers):
    order = iter(_Order(12, TrainingSettings(batch=5), DistributedContext(), seen=0))
    keys = [key for _ in range(6) for key in next(order)]
    task, settings = (
        LineTask(),
        TrainingSettings(batch=5, steps=6, workers=workers, validate_every=100),
    )
    seen = []
    task.loss = lambda model, batch: (seen.append(batch[0]), LineTask.loss(task, model, batch))[1]
    task.validate = lambda model: {"score": 0.0}
    with pytest.raises(PenumbraError, match="ARCHITECTURES"):  # the last validation cannot be kept
        train(task, settings, tmp_path)
    data = Line()
    expected = np.stack([data[key][0] for key in keys])
    np.testing.assert_array_equal(torch.cat(seen).numpy(), expected)


DISTRIBUTED = """
import sys
sys.path.insert(0, {tests!r})
import torch, test_loop, penumbra.offline.models
from pathlib import Path
from penumbra.offline.training.loop import train
from penumbra.offline.training.settings import TrainingSettings
penumbra.offline.models.ARCHITECTURES["line"] = "tests:SavedLinear"
settings = TrainingSettings(batch=4, steps=20, decay_steps=5, rate=0.01, validate_every=100)
train(test_loop.LineTask(), settings, Path({folder!r}))
"""


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path, linear_is_known):
    """Gradients averaged over two halves of a batch are those of the batch, up to rounding."""
    settings = TrainingSettings(batch=4, steps=20, decay_steps=5, rate=0.01, validate_every=100)
    train(LineTask(), settings, tmp_path / "one")
    script = tmp_path / "script.py"
    script.write_text(
        DISTRIBUTED.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "two"))
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run([*launcher, str(script)], env=ENVIRONMENT, check=True, timeout=300)
    one, two = load_state(tmp_path / "one"), load_state(tmp_path / "two")
    assert one["step"] == two["step"] == 20
    # Adam divides by the gradient's size: rounding of 1e-7 stays of that order over 20 steps.
    torch.testing.assert_close(one["model"], two["model"], rtol=1e-5, atol=1e-6)
