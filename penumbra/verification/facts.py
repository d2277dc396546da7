"""The result of a verification: dataclasses that are written to JSON and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penumbra.offline.metrics.agreement import Sparsification
from penumbra.verification.tolerance import Check

Figures = dict[str, float]
"""By name: see `TITLES` and `COLUMNS` of `penumbra.verification.figures`."""
OURS, SAMPLED = "propagated", "monte_carlo"
METHODS = (OURS, SAMPLED)


@dataclass(frozen=True)
class BagFacts:
    """The verified frames; `sha256` is of their pixels as input of the network."""

    name: str
    topic: str
    frames: int
    sha256: str


@dataclass(frozen=True)
class BundleFacts:
    """The verified bundle; `variant`, `gains` and `provenance` as its manifest has them."""

    name: str
    sha256: str
    task: str
    variant: dict[str, Any]
    precision: str
    gains: dict[str, Any] | None
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where the gains are called calibration."""
        facts = asdict(self)
        facts["calibration"] = facts.pop("gains")
        return facts

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BundleFacts:
        """From the result of `to_dict`."""
        facts = dict(data)
        return cls(gains=facts.pop("calibration"), **facts)


@dataclass(frozen=True)
class ReferenceFacts:
    """How the Monte-Carlo reference was sampled, and how many frames were not in the cache."""

    samples: int
    seed: int
    computed_in_this_run: int


@dataclass(frozen=True)
class SparsificationCurves:
    """`Sparsification` as plain numbers."""

    quantiles: list[float]
    curve: list[float]
    oracle: list[float]

    @classmethod
    def of(cls, measured: Sparsification) -> SparsificationCurves:
        """From arrays."""
        return cls(measured.quantiles.tolist(), measured.curve.tolist(), measured.oracle.tolist())


@dataclass(frozen=True)
class FrameFacts:
    """One frame; `figures` has those that apply to the task and to the ground truth of the bag."""

    time_s: float  # since the first frame
    stamp_s: float
    infer_ms: float
    total_ms: float
    figures: Figures

    def to_dict(self) -> Figures:
        """For JSON and tables: all in one mapping."""
        own = {name: value for name, value in asdict(self).items() if name != "figures"}
        return own | self.figures

    @classmethod
    def from_dict(cls, data: Mapping[str, float]) -> FrameFacts:
        """From the result of `to_dict`."""
        figures = dict(data)
        return cls(
            time_s=figures.pop("time_s"),
            stamp_s=figures.pop("stamp_s"),
            infer_ms=figures.pop("infer_ms"),
            total_ms=figures.pop("total_ms"),
            figures=figures,
        )


@dataclass(frozen=True)
class SpeedFacts:
    """Median time of a frame in the node, and of sampling the same frame, by number of samples."""

    node_infer_s: float
    node_total_s: float
    sample_s: float
    monte_carlo_s: dict[int, float]
    times_faster: dict[int, float]
    torch_threads: int
    load_average: float  # of the machine: other processes may have slowed it down
    height: int
    width: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON, whose keys are strings."""
        return asdict(self) | {
            "monte_carlo_s": {str(count): value for count, value in self.monte_carlo_s.items()},
            "times_faster": {str(count): value for count, value in self.times_faster.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpeedFacts:
        """From the result of `to_dict`."""
        by_count = {
            name: {int(count): value for count, value in data[name].items()}
            for name in ("monte_carlo_s", "times_faster")
        }
        return cls(**{**data, **by_count})


@dataclass(frozen=True)
class VerificationFacts:
    """The node against Monte Carlo, and both against ground truth, on one bag.

    `truth`, `sparsification` and `coverage` are by method, and empty without ground truth.
    """

    bag: BagFacts
    created: str
    bundle: BundleFacts
    reference: ReferenceFacts
    checks: Sequence[Check]
    figures: Figures
    truth: dict[str, Figures]
    sparsification: dict[str, SparsificationCurves]
    coverage: dict[str, list[Figures]]
    per_frame: Sequence[FrameFacts]
    speed: SpeedFacts
    versions: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether every tolerance of the bundle's manifest is held."""
        return all(check.is_good for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where the sparsification is called calibration."""
        return {
            "bag": asdict(self.bag),
            "passed": self.passed,
            "created": self.created,
            "bundle": self.bundle.to_dict(),
            "reference": asdict(self.reference),
            "checks": [asdict(check) for check in self.checks],
            "figures": self.figures,
            "truth": self.truth,
            "calibration": {name: asdict(curves) for name, curves in self.sparsification.items()},
            "coverage": self.coverage,
            "per_frame": [frame.to_dict() for frame in self.per_frame],
            "speed": self.speed.to_dict(),
            "versions": self.versions,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> VerificationFacts:
        """From the result of `to_dict`; KeyError or TypeError if something is missing."""
        curves = data["calibration"].items()
        return cls(
            bag=BagFacts(**data["bag"]),
            created=data["created"],
            bundle=BundleFacts.from_dict(data["bundle"]),
            reference=ReferenceFacts(**data["reference"]),
            checks=[Check(**check) for check in data["checks"]],
            figures=data["figures"],
            truth=data["truth"],
            sparsification={name: SparsificationCurves(**curve) for name, curve in curves},
            coverage=data["coverage"],
            per_frame=[FrameFacts.from_dict(frame) for frame in data["per_frame"]],
            speed=SpeedFacts.from_dict(data["speed"]),
            versions=data["versions"],
        )
