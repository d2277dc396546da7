"""Light of a time of day and a weather, and the lines painted on the road."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Bgr = tuple[float, float, float]


@dataclass(frozen=True)
class Stripe:
    """A painted line along the street, within the `spans` of z.

    Dashes of `dash` metres every `period` metres (0: unbroken).
    """

    x: float
    width: float
    spans: tuple[tuple[float, float], ...]
    dash: float = 0.0
    period: float = 0.0
    colour: Bgr = (225.0, 228.0, 228.0)


class _Weather(NamedTuple):
    """Sun and ambient light as BGR factors; BGR colours of the sky overhead and at the horizon."""

    name: str
    chance: float
    sun: Bgr
    ambient: Bgr
    zenith: Bgr
    horizon: Bgr
    cloud: float
    haze_m: float
    elevation: tuple[float, float]


_WEATHERS = (
    _Weather(
        name="clear",
        chance=0.26,
        sun=(0.62, 0.70, 0.76),
        ambient=(0.58, 0.52, 0.48),
        zenith=(218, 168, 118),
        horizon=(238, 224, 210),
        cloud=0.3,
        haze_m=500,
        elevation=(25, 65),
    ),
    _Weather(
        name="bright",
        chance=0.22,
        sun=(0.50, 0.54, 0.57),
        ambient=(0.64, 0.60, 0.58),
        zenith=(222, 178, 130),
        horizon=(246, 238, 230),
        cloud=0.9,
        haze_m=400,
        elevation=(25, 60),
    ),
    _Weather(
        name="overcast",
        chance=0.18,
        sun=(0.06, 0.06, 0.06),
        ambient=(0.92, 0.90, 0.88),
        zenith=(205, 198, 190),
        horizon=(228, 224, 220),
        cloud=0.6,
        haze_m=260,
        elevation=(50, 70),
    ),
    _Weather(
        name="golden",
        chance=0.12,
        sun=(0.40, 0.62, 0.86),
        ambient=(0.52, 0.46, 0.46),
        zenith=(200, 160, 130),
        horizon=(150, 200, 245),
        cloud=0.7,
        haze_m=280,
        elevation=(10, 22),
    ),
    _Weather(
        name="dusk",
        chance=0.08,
        sun=(0.18, 0.24, 0.36),
        ambient=(0.58, 0.50, 0.48),
        zenith=(124, 96, 82),
        horizon=(138, 146, 182),
        cloud=0.8,
        haze_m=320,
        elevation=(6, 14),
    ),
    _Weather(
        name="rain",
        chance=0.08,
        sun=(0.03, 0.03, 0.03),
        ambient=(0.66, 0.63, 0.60),
        zenith=(150, 144, 138),
        horizon=(186, 182, 176),
        cloud=0.5,
        haze_m=140,
        elevation=(50, 70),
    ),
    _Weather(
        name="mist",
        chance=0.06,
        sun=(0.10, 0.10, 0.11),
        ambient=(0.86, 0.85, 0.83),
        zenith=(206, 204, 200),
        horizon=(216, 215, 212),
        cloud=0.15,
        haze_m=70,
        elevation=(30, 60),
    ),
)


@dataclass(frozen=True)
class Light:
    """A time of day and a weather. Colours are BGR factors, `toward` points at the sun."""

    toward: tuple[float, float, float]
    sun: Bgr
    ambient: Bgr
    zenith: Bgr
    horizon: Bgr
    cloud: float
    haze_m: float
    exposure: float = 1.0

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Light:
        """A random weather: clear, bright clouds, overcast, golden evening, dusk, rain or mist."""
        chance = [weather.chance for weather in _WEATHERS]
        weather = _WEATHERS[rng.choice(len(_WEATHERS), p=chance)]
        elevation = np.radians(rng.uniform(*weather.elevation))
        azimuth = rng.uniform(0, 2 * math.pi)
        flat = math.cos(elevation)
        toward = (flat * math.sin(azimuth), math.sin(elevation), flat * math.cos(azimuth))
        cast = rng.normal(1, 0.015, 3)  # error of the camera's white balance
        return cls(
            toward=toward,
            sun=tuple((np.array(weather.sun) * cast).tolist()),
            ambient=tuple((np.array(weather.ambient) * cast).tolist()),
            zenith=tuple((np.array(weather.zenith) * cast).tolist()),
            horizon=tuple((np.array(weather.horizon) * cast).tolist()),
            cloud=float(weather.cloud * rng.uniform(0.6, 1.3)),
            haze_m=float(weather.haze_m * rng.uniform(0.7, 1.5)),
            exposure=float(rng.uniform(1.0, 1.3)),
        )

    def on(self, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(sun, ambient) light, each (..., 3), on surfaces of unit world normals (..., 3)."""
        straight = np.clip(normal @ np.array(self.toward), 0, None)[..., None]
        # surfaces that face up see more of the sky; a wall sees half sky, half lit ground
        open_sky = (0.72 + 0.28 * normal[..., 1])[..., None]
        return straight * np.array(self.sun), open_sky * np.array(self.ambient)
