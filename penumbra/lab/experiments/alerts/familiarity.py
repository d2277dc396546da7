"""Familiarity of the scene on CamVid: methods by leave-one-drive-out, then the test split once.

python -m penumbra.lab.experiments.alerts.familiarity --data DIR --cache DIR segnet-camvid-encdec

Statistics are computed by the exported graph and kept in --cache, so that comparing methods costs
seconds. Every method is fitted to CamVid's training and validation frames alone. The first table
compares methods on drives that were left out, against every second indoor and foggy photograph; it
is what the choice was made by. The second one is of the method in
`penumbra.offline.fitting.familiarity`, on the test split and the other half of the photographs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penumbra.bundle import Bundle, load_bundle
from penumbra.files import write_atomically
from penumbra.offline.datasets.rgb_images import read_rgb_image
from penumbra.offline.fitting.familiarity import collect, fit_familiarity, in_blocks, taps_of
from penumbra.vehicle.image_fit import fit_to_size
from penumbra.vehicle.monitor.familiarity import Familiarity

SIZE = (360, 480)
DRIVES = ("0001TP", "0006R0", "0016E5")
UNSEEN = "Seq05VD"
WARN_RATE = 0.05
Distance = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Frames:
    """Statistics by drive or kind of photograph; `varied` are photometric variants of drives."""

    drives: Mapping[str, np.ndarray]
    varied: Mapping[str, np.ndarray]
    indoor: np.ndarray
    fog: np.ndarray
    kitti: np.ndarray
    test: Mapping[str, np.ndarray]


def main(arguments: list[str] | None = None) -> int:
    """Print the tables of each bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", help="names of shipped bundles")
    parser.add_argument("--data", type=Path, required=True, help="holds camvid/, ood_indoor/ …")
    parser.add_argument("--cache", type=Path, required=True, help="for graphs and statistics")
    options = parser.parse_args(arguments)
    for name in options.bundles:
        bundle = _with_statistics(name, options.cache)
        frames = _frames(bundle, options.data, options.cache)
        taps = taps_of(bundle) or []
        print(f"## {name}\n\n{comparison(frames, taps)}\n\n{evaluation(frames, taps)}\n")
    return 0


def comparison(frames: Frames, taps: list[int]) -> str:
    """Methods by leave-one-drive-out: no frame is scored by a model that has seen its drive."""
    lines = [
        "| method | variants | AUROC indoor, fog | found indoor, fog | WARN by other drives |",
        "| --- | --- | --- | --- | --- |",
    ]
    for varied in ({}, frames.varied):
        for label, fit in METHODS.items():
            row = _left_out(frames, varied, lambda rows, share, fit=fit: fit(rows, share, taps))
            lines.append(f"| {label} | {'yes' if varied else 'no'} | {row} |")
    return "\n".join(lines)


def _left_out(
    frames: Frames, varied: Mapping[str, np.ndarray], fit: Callable[..., Distance]
) -> str:
    ordinary, indoor, fog = {}, {}, {}
    for drive in DRIVES:
        kept = [
            np.concatenate([frames.drives[other], *([varied[other]] if varied else [])])
            for other in DRIVES
            if other != drive
        ]
        share = np.concatenate([np.full(len(part), 0.5 / len(part)) for part in kept])
        distance = fit(np.concatenate(kept), share)
        ordinary[drive] = distance(frames.drives[drive])
        indoor[drive], fog[drive] = distance(frames.indoor[::2]), distance(frames.fog[::2])
    limits = {drive: float(np.quantile(ordinary[drive], 1 - WARN_RATE)) for drive in DRIVES}
    limit = max(limits.values())
    ranked = [
        np.mean([auroc(ordinary[drive], kind[drive]) for drive in DRIVES]) for kind in (indoor, fog)
    ]
    found = [np.mean([np.mean(kind[drive] > limit) for drive in DRIVES]) for kind in (indoor, fog)]
    warned = [
        np.mean(ordinary[drive] > max(limits[other] for other in DRIVES if other != drive))
        for drive in DRIVES
    ]
    return (
        f"{ranked[0]:.4f}, {ranked[1]:.4f} | {found[0]:.0%}, {found[1]:.0%} | "
        f"{', '.join(f'{share:.0%}' for share in warned)}"
    )


def evaluation(frames: Frames, taps: list[int]) -> str:
    """The kept method on the test split, at thresholds from the three fitted drives."""
    model = fit_familiarity(frames.drives, taps, frames.varied)
    threshold = -np.log10(WARN_RATE)
    unseen = _scores(model, frames.test[UNSEEN])
    test = np.concatenate([_scores(model, rows) for rows in frames.test.values()])
    kinds = {"indoor": frames.indoor, "fog": frames.fog, "KITTI streets": frames.kitti}
    lines = ["| what | all | half not used to choose |", "| --- | --- | --- |"]
    for drive, rows in frames.test.items():
        warned = np.mean(_scores(model, rows) > threshold)
        lines.append(f"| WARN, {drive} ({len(rows)} frames) | {warned:.1%} | |")
    for name, rows in kinds.items():
        scores = _scores(model, rows)
        parts = (scores, scores[1::2])
        ranked = " | ".join(f"{auroc(test, part):.4f}" for part in parts)
        found = " | ".join(f"{np.mean(part > threshold):.1%}" for part in parts)
        lines += [f"| AUROC against test, {name} | {ranked} |", f"| found, {name} | {found} |"]
    start = time.perf_counter()
    for row in frames.indoor:
        model.score(row)
    spent = (time.perf_counter() - start) / len(frames.indoor) * 1e3
    lines.append(
        f"| highest score in {UNSEEN}; time of a score | {unseen.max():.2f} | {spent:.3f} ms |"
    )
    half = len(frames.kitti) // 2
    for count in (10, 20, half):
        own = in_blocks(frames.kitti[:count], 2) if count >= 20 else {"own": frames.kitti[:count]}
        refitted = fit_familiarity({**frames.drives, **own}, taps, frames.varied)
        warned = np.mean(_scores(refitted, frames.kitti[half:]) > threshold)
        found = np.mean(_scores(refitted, frames.fog) > threshold)
        lines.append(
            f"| refitted with {count} KITTI frames: WARN on the later half; fog found | "
            f"{warned:.1%} | {found:.1%} |"
        )
    return "\n".join(lines)


def auroc(ordinary: np.ndarray, strange: np.ndarray) -> float:
    """The probability that a strange frame is over an ordinary one; ties count half."""
    ordered = np.sort(ordinary)
    below = np.searchsorted(ordered, strange, "left") + np.searchsorted(ordered, strange, "right")
    return float(below.mean()) / 2 / len(ordered)


def _scores(model: Familiarity, rows: np.ndarray) -> np.ndarray:
    return np.array([model.score(row) for row in rows])


def _standard(rows: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    centre = share @ rows
    spread = np.sqrt(share @ (rows - centre) ** 2)
    return centre, spread + 0.05 * spread.mean()


def _gaussian(
    rows: np.ndarray, share: np.ndarray, kept: int, inside: bool, outside: bool
) -> Distance:
    """Squared distance within `kept` principal directions, outside of them, or both."""
    centre, scale = _standard(rows, share / share.sum())
    z = (rows - centre) / scale
    values, vectors = np.linalg.eigh((z * (share / share.sum())[:, None]).T @ z)
    values, basis = np.maximum(values[::-1], 1e-9), vectors[:, ::-1][:, :kept]
    rest = values[kept:].mean()

    def distance(given: np.ndarray) -> np.ndarray:
        q = (given - centre) / scale
        along = (q @ basis) ** 2
        beside = (q**2).sum(1) - along.sum(1)
        return inside * (along / values[:kept]).sum(1) + outside * beside / rest

    return distance


def _shrunk(rows: np.ndarray, share: np.ndarray, amount: float) -> Distance:
    """Mahalanobis distance; the covariance is drawn towards a multiple of the identity."""
    centre, scale = _standard(rows, share / share.sum())
    z = (rows - centre) / scale
    values, basis = np.linalg.eigh((z * (share / share.sum())[:, None]).T @ z)
    values = (1 - amount) * np.maximum(values, 0) + amount * values.mean()
    return lambda given: ((((given - centre) / scale @ basis) ** 2) / values).sum(1)


def _nearest(rows: np.ndarray, share: np.ndarray, neighbour: int) -> Distance:
    """Distance to the n-th nearest of the fitted frames."""
    centre, scale = _standard(rows, share / share.sum())
    z = (rows - centre) / scale

    def distance(given: np.ndarray) -> np.ndarray:
        q = (given - centre) / scale
        squares = (q**2).sum(1)[:, None] + (z**2).sum(1) - 2 * q @ z.T
        return np.partition(squares, neighbour - 1, 1)[:, neighbour - 1]

    return distance


def _mixture(rows: np.ndarray, share: np.ndarray, parts: int, kept: int) -> Distance:
    """A mixture of diagonal Gaussians in `kept` directions, isotropic outside of them."""
    share = share / share.sum()
    centre, scale = _standard(rows, share)
    z = (rows - centre) / scale
    values, vectors = np.linalg.eigh((z * share[:, None]).T @ z)
    values, basis = np.maximum(values[::-1], 1e-9), vectors[:, ::-1][:, :kept]
    rest, unit = values[kept:].mean(), np.sqrt(values[:kept])
    p = z @ basis / unit
    means = p[np.random.default_rng(0).permutation(len(p))[:parts]]
    variances, portions = np.ones((parts, kept)), np.full(parts, 1 / parts)

    def log_likelihoods(q: np.ndarray) -> np.ndarray:
        exponent = (q[:, None] - means) ** 2 / variances + np.log(variances)
        return np.asarray(-0.5 * exponent.sum(2) + np.log(portions))

    for _ in range(40):
        logs = log_likelihoods(p)
        belongs = np.exp(logs - logs.max(1, keepdims=True))
        belongs *= share[:, None] / belongs.sum(1, keepdims=True)
        mass = belongs.sum(0) + 1e-12
        portions, means = mass / mass.sum(), belongs.T @ p / mass[:, None]
        variances = np.maximum(belongs.T @ p**2 / mass[:, None] - means**2, 0.05)

    def distance(given: np.ndarray) -> np.ndarray:
        q = (given - centre) / scale
        logs = log_likelihoods(q @ basis / unit)
        top = logs.max(1)
        inside = -top - np.log(np.exp(logs - top[:, None]).sum(1))
        return inside + 0.5 * ((q**2).sum(1) - ((q @ basis) ** 2).sum(1)) / rest

    return distance


def _per_tap(
    rows: np.ndarray, share: np.ndarray, taps: list[int], combine: Callable[..., np.ndarray]
) -> Distance:
    """The sum of residual and Mahalanobis of each tap, standardised, then combined."""
    share = share / share.sum()
    ends = np.cumsum(taps)
    models = []
    for first, last in zip(ends - taps, ends, strict=True):
        fitted = _gaussian(rows[:, first:last], share, min(16, last - first - 1), True, True)
        own = fitted(rows[:, first:last])
        mean = share @ own
        models.append((first, last, fitted, mean, np.sqrt(share @ (own - mean) ** 2)))
    return lambda given: combine(
        [(fitted(given[:, a:b]) - mean) / std for a, b, fitted, mean, std in models], axis=0
    )


METHODS: dict[str, Callable[..., Distance]] = {
    "PCA 16 residual": lambda r, s, _: _gaussian(r, s, 16, False, True),
    "PCA 64 residual": lambda r, s, _: _gaussian(r, s, 64, False, True),
    "Mahalanobis within PCA 16": lambda r, s, _: _gaussian(r, s, 16, True, False),
    "Mahalanobis, shrunk by 0.03": lambda r, s, _: _shrunk(r, s, 0.03),
    "Mahalanobis, shrunk by 0.1": lambda r, s, _: _shrunk(r, s, 0.1),
    "sum of both, 16": lambda r, s, _: _gaussian(r, s, 16, True, True),
    "sum of both, 32": lambda r, s, _: _gaussian(r, s, 32, True, True),
    "sum of both, 64": lambda r, s, _: _gaussian(r, s, 64, True, True),
    "sum of both, 16 per tap, largest": lambda r, s, t: _per_tap(r, s, t, np.max),
    "**sum of both, 16 per tap, added**": lambda r, s, t: _per_tap(r, s, t, np.sum),
    "mixture of 3": lambda r, s, _: _mixture(r, s, 3, 16),
    "nearest neighbour": lambda r, s, _: _nearest(r, s, 1),
    "fifth neighbour": lambda r, s, _: _nearest(r, s, 5),
}


def _with_statistics(name: str, cache: Path) -> Bundle:
    """The shipped bundle, exported again with statistics; kept in the cache."""
    from penumbra.offline.export import ExportOptions, export_bundle
    from penumbra.share import bundle_folder

    folder = cache / f"bundle-{name}"
    if (folder / "manifest.yaml").is_file():
        return load_bundle(folder)
    rules = load_bundle(bundle_folder(name)).rules
    options = ExportOptions(*SIZE, relu=rules.relu, softmax=rules.softmax)
    return export_bundle(bundle_folder(name), folder, options, name=name)


def _frames(bundle: Bundle, data: Path, cache: Path) -> Frames:
    """All statistics, from the cache where they are there."""
    from penumbra.vehicle.runners import RunnerSettings, create

    camvid = data / "camvid"
    ordinary = sorted([*(camvid / "train").glob("*.jpg"), *(camvid / "val").glob("*.jpg")])
    raw = sorted((data / "kitti/raw").rglob("image_02/data/*.jpg"))
    with create("openvino", bundle, ["statistics"], RunnerSettings(threads=1)) as runner:

        def statistics(image: np.ndarray) -> np.ndarray:
            bgr = np.ascontiguousarray(image[..., ::-1])
            return np.asarray(runner.infer(bgr)["statistics"])

        def of(label: str, files: Iterable[Path], copies: int = 0) -> tuple[np.ndarray, np.ndarray]:
            file = cache / f"statistics-{bundle.sha256[:12]}-{label}.npz"
            if not file.is_file():
                images = (fit_to_size(read_rgb_image(path), SIZE) for path in files)
                plain, varied = collect(images, statistics, copies)
                _save(file, plain, varied)
            with np.load(file) as stored:
                return stored["plain"], stored["varied"]

        def of_drive(drive: str) -> list[Path]:
            return [path for path in ordinary if path.name.startswith(drive)]

        drives = {drive: of(drive, of_drive(drive), copies=1) for drive in DRIVES}
        test = {
            drive: of(f"test-{drive}", sorted((camvid / "test").glob(f"{drive}*")))[0]
            for drive in ("0001TP", UNSEEN)
        }
        return Frames(
            {drive: plain for drive, (plain, _) in drives.items()},
            {drive: varied for drive, (_, varied) in drives.items()},
            of("indoor", sorted((data / "ood_indoor").glob("*.jpg")))[0],
            of("fog", sorted((data / "adverse_fog").glob("*.jpg")))[0],
            of("kitti", raw)[0],
            test,
        )


def _save(file: Path, plain: np.ndarray, varied: np.ndarray) -> None:
    import io

    stream = io.BytesIO()
    np.savez(stream, plain=plain, varied=varied)
    write_atomically(file, stream.getvalue())


if __name__ == "__main__":
    raise SystemExit(main())
