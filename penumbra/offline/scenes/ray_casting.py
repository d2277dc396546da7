"""The first surface that each pixel's ray meets, and its depth, in closed form.

With d = (x, y, 1) the ray of a pixel in camera axes, it meets a quad with corners p0, p0 + e1,
p0 + e2 where [e1 e2 p0]⁻¹ d = (s, t, 1) / depth: the inverse depth and the texture coordinates over
depth are linear in the pixel. It meets a quadric |o + λ m d| = 1 at the inverse depth
1/λ = (-b + √(b² - a c)) / c with a = |m d|², b = o · m d, c = |o|² - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penumbra.offline.scenes.camera import NEAR, Camera
from penumbra.offline.scenes.mesh import Mesh, cross
from penumbra.offline.scenes.texture_atlas import atlas
from penumbra.offline.scenes.tile_drawing import SIZE

FAR = 1000.0
"""Distance in metres beyond which there is only sky."""
SMALL = 700
"""Surfaces whose bounding box has up to this many pixels are drawn in one batch: for small surfaces
the cost in NumPy is that of the calls, not of the pixels."""


@dataclass(frozen=True)
class Hits:
    """The surface that each pixel shows: quads first, then rounds, then one number for the sky."""

    surface: np.ndarray
    """int32: index into the quads; quads + index into the rounds; quads + rounds for the sky."""
    inverse_depth: np.ndarray
    """float32; 1 / FAR in the sky."""
    quad_forms: np.ndarray
    """(quads, 3, 3): applied to the ray d, gives (u, v, 1) / depth."""


def cast(mesh: Mesh, eye: np.ndarray, rotation: np.ndarray, camera: Camera, scale: int = 1) -> Hits:
    """Cast rays from `eye` (world) through the pixels of `camera`, `scale` times as many a side."""
    target = _Target(*camera.rays(scale))
    forms = _cast_quads(mesh.quads, eye, rotation, camera.focal_px * scale, target)
    _cast_rounds(mesh.rounds, eye, rotation, target, len(mesh.quads))
    surface = target.surface
    surface[surface < 0] = len(mesh.quads) + len(mesh.rounds)
    return Hits(surface, target.inverse_depth, forms)


class _Target:
    """The depth buffer: surface and inverse depth of each pixel."""

    def __init__(self, xs: np.ndarray, ys: np.ndarray) -> None:
        self.xs, self.ys = xs, ys
        self.x32, self.y32 = xs.astype(np.float32), ys.astype(np.float32)
        self.columns = np.arange(len(xs), dtype=np.int32)
        self.surface = np.full((len(ys), len(xs)), -1, np.int32)
        self.inverse_depth = np.full((len(ys), len(xs)), 1 / FAR, np.float32)

    def boxes(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Pixel boxes (n, 4) of ray ranges (n, 2): left, right, top, bottom; ends are exclusive."""
        left, right = np.searchsorted(self.xs, (low[:, 0], high[:, 0]))
        # rows run downwards while y runs up
        top, bottom = np.searchsorted(-self.ys, (-high[:, 1], -low[:, 1]))
        return np.stack([left, right, top, bottom], axis=-1)

    def hidden(self, place: tuple[slice, slice], nearest: float) -> bool:
        """Whether everything drawn there is nearer than the inverse depth `nearest`."""
        return bool(self.inverse_depth[place].min() >= nearest)

    def write(
        self, place: tuple[slice, slice], inside: np.ndarray, inverse: np.ndarray, number: int
    ) -> None:
        """Draw one surface into a box of pixels."""
        held = self.inverse_depth[place]
        inside &= inverse > held
        np.copyto(held, inverse, where=inside)
        np.copyto(self.surface[place], number, where=inside)

    def scatter(self, pixel: np.ndarray, inverse: np.ndarray, number: np.ndarray) -> None:
        """Draw many surfaces at once, as a list of pixels that may repeat."""
        held, shown = self.inverse_depth.reshape(-1), self.surface.reshape(-1)
        ahead = inverse > held.take(pixel)
        pixel, inverse, number = pixel[ahead], inverse[ahead], number[ahead]
        np.maximum.at(held, pixel, inverse)
        won = held.take(pixel) == inverse
        shown[pixel[won]] = number[won]


def _runs(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For consecutive runs of `counts` items: the run of each item, and its index in the run."""
    run = np.repeat(np.arange(len(counts)), counts)
    return run, np.arange(len(run)) - (np.cumsum(counts) - counts)[run]


# --- quads --------------------------------------------------------------------------------------


def _cast_quads(
    quads: np.ndarray, eye: np.ndarray, rotation: np.ndarray, focal: float, target: _Target
) -> np.ndarray:
    points = (quads["corners"] - eye) @ rotation  # (n, 4, 3) in camera axes
    forms = np.zeros((len(quads), 3, 3))
    e1, e2 = points[:, 1] - points[:, 0], points[:, 3] - points[:, 0]
    normal = cross(e1, e2)
    volume = np.einsum("ij,ij->i", normal, points[:, 0])
    # culled: edge-on (the camera lies in the plane), seen from behind, or behind the camera
    faces = np.abs(volume) > 1e-9 * np.linalg.norm(normal, axis=1)
    faces &= (points[..., 2].max(axis=1) > NEAR) & (~quads["closed"] | (volume < 0))
    seen = np.flatnonzero(faces)
    boxes = target.boxes(*_extent(points[seen]))
    shown = (boxes[:, 1] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 2])
    seen, boxes = seen[shown], boxes[shown]
    # front to back, so that hidden surfaces are skipped early
    order = np.argsort(points[seen, :, 2].min(axis=1), kind="stable")
    seen, boxes = seen[order], boxes[order]
    points, e1, e2 = points[seen], e1[seen], e2[seen]

    form = np.linalg.inv(np.stack([e1, e2, points[:, 0]], axis=-1))
    repeat = quads["repeat"][seen].astype(float)
    form[:, :2] *= repeat[..., None]
    form[:, :2] += quads["offset"][seen][..., None] * form[:, 2:]
    forms[seen] = form
    nearest = points[..., 2].min(axis=1)
    side = np.maximum(np.linalg.norm(e1, axis=1), np.linalg.norm(e2, axis=1))
    texels = np.abs(repeat).max(axis=1) * SIZE / side
    distance = np.maximum(points[..., 2].mean(axis=1), NEAR)
    level = np.log2(np.maximum(texels * distance / focal, 1)).astype(int)
    holes = atlas().holes(quads["texture"][seen], level)

    quad, row, left, right = _spans(points, boxes, target)
    area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
    large = (area > SMALL) | (nearest < NEAR)
    ends = np.cumsum(boxes[:, 3] - boxes[:, 2])
    cut = quads["cut"][seen]
    for k in np.flatnonzero(large).tolist():
        x0, x1, y0, y1 = boxes[k].tolist()
        place = (slice(y0, y1), slice(x0, x1))
        if target.hidden(place, 1 / max(nearest[k], NEAR)):
            continue
        span = slice(ends[k] - (y1 - y0), ends[k])
        inside = target.columns[x0:x1] >= left[span, None]
        inside &= target.columns[x0:x1] < right[span, None]
        x, y = target.x32[x0:x1], target.y32[y0:y1, None]
        (ux, uy, u1), (vx, vy, v1), (ix, iy, i1) = form[k].tolist()
        inverse = ix * x + (iy * y + i1)
        if nearest[k] < NEAR:
            inside &= inverse < 1 / NEAR
        if cut[k]:
            depth = 1 / np.maximum(inverse, np.float32(1 / FAR))
            u, v = (ux * x + (uy * y + u1)) * depth, (vx * x + (vy * y + v1)) * depth
            inside &= atlas().solid(holes[0][k], holes[1][k], u, v)
        target.write(place, inside, inverse, int(seen[k]))

    some = ~large[quad]
    quad, row, left, right = quad[some], row[some], left[some], right[some]
    run, step = _runs(np.maximum(right - left, 0))
    column, owner = left[run] + step, quad[run]
    x, base = target.x32[column], _at_rows(form[quad], target.ys[row])
    slopes = form[..., 0].astype(np.float32)
    inverse = slopes[owner, 2] * x + base[run, 2]
    kept = np.ones(len(run), bool)
    holed = np.flatnonzero(cut[owner])
    u, v = (
        (slopes[owner[holed], i] * x[holed] + base[run[holed], i]) / inverse[holed] for i in (0, 1)
    )
    start, size = (h[owner[holed]] for h in holes)
    kept[holed] = atlas().solid(start, size, u, v)
    pixel = row[run] * len(target.xs) + column
    target.scatter(pixel[kept], inverse[kept], seen[owner[kept]])
    return forms


def _at_rows(form: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The part of a linear form that is constant along a row: (n, 3)."""
    return (form[..., 1] * y[:, None] + form[..., 2]).astype(np.float32)


def _extent(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest (x/z, y/z) over the part of each quad beyond the near plane."""
    ahead = np.roll(points, -1, axis=1)
    z, z_ahead = points[..., 2], ahead[..., 2]
    crosses = (z < NEAR) != (z_ahead < NEAR)
    share = (NEAR - z) / np.where(crosses, z_ahead - z, 1.0)
    crossing = points + share[..., None] * (ahead - points)
    every = np.concatenate([points, crossing], axis=1)
    valid = np.concatenate([z >= NEAR, crosses], axis=1)[..., None]
    flat = every[..., :2] / np.where(valid, every[..., 2:], 1.0)
    return np.where(valid, flat, np.inf).min(axis=1), np.where(valid, flat, -np.inf).max(axis=1)


def _spans(
    points: np.ndarray, boxes: np.ndarray, target: _Target
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each row of each quad's box (quad, row) the columns [left, right) inside the quad.

    An edge from p to q and the camera span a plane with normal p × q; a ray is inside if it lies on
    the inner side of all four. Adjacent quads share the two points of an edge, so their planes are
    equal up to sign, bit for bit, and no pixel falls between them.
    """
    edges = cross(points, np.roll(points, -1, axis=1))  # (n, 4, 3)
    middle = points.mean(axis=1)
    edges *= np.sign(np.einsum("nij,nj->n", edges, middle))[:, None, None]
    quad, step = _runs(boxes[:, 3] - boxes[:, 2])
    row = boxes[quad, 2] + step
    low = np.full(len(row), -np.inf)
    high = np.full(len(row), np.inf)
    for i in range(4):
        a, b, c = edges[quad, i].T
        rest = b * target.ys[row] + c
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = -rest / a
        np.maximum(low, crossing, where=a > 0, out=low)
        np.minimum(high, crossing, where=a < 0, out=high)
        high[(a == 0) & (rest < 0)] = -np.inf
    left = np.searchsorted(target.xs, low).astype(np.int32)
    right = np.searchsorted(target.xs, high, side="right").astype(np.int32)
    return quad, row, left, right


# --- rounds -------------------------------------------------------------------------------------


def _cast_rounds(
    rounds: np.ndarray, eye: np.ndarray, rotation: np.ndarray, target: _Target, first: int
) -> None:
    centre = (rounds["centre"] - eye) @ rotation
    axes = rotation.T @ rounds["axes"]
    reach = np.linalg.norm(axes, axis=(1, 2))
    number = np.flatnonzero(centre[:, 2] - reach > NEAR)
    corners = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], float)
    hull = centre[number, None] + corners @ axes[number].transpose(0, 2, 1)  # (n, 8, 3)
    flat = hull[..., :2] / hull[..., 2:]
    boxes = target.boxes(flat.min(axis=1), flat.max(axis=1))
    shown = (boxes[:, 1] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 2])
    number, boxes = number[shown], boxes[shown]
    quadrics = _Quadrics.of(centre[number], axes[number], rounds["tube"][number])
    nearest = 1 / (centre[number, 2] - reach[number])
    area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
    for k in np.flatnonzero(area > SMALL).tolist():
        x0, x1, y0, y1 = boxes[k].tolist()
        place = (slice(y0, y1), slice(x0, x1))
        if not target.hidden(place, nearest[k]):
            met = quadrics.meet(k, target.x32[x0:x1], target.y32[y0:y1, None])
            target.write(place, *met, first + int(number[k]))
    small = np.flatnonzero(area <= SMALL)
    box, row = _runs(boxes[small, 3] - boxes[small, 2])
    run, step = _runs((boxes[small, 1] - boxes[small, 0])[box])
    box, row = box[run], row[run] + boxes[small[box[run]], 2]
    column = step + boxes[small[box], 0]
    which = small[box]
    inside, inverse = quadrics.meet(which, target.x32[column], target.y32[row])
    pixel = row * len(target.xs) + column
    target.scatter(pixel[inside], inverse[inside], first + number[which[inside]])


@dataclass(frozen=True)
class _Quadrics:
    """The coefficients a, b, c of the module's docstring, as forms in the ray of a pixel."""

    linear: np.ndarray  # b (n, 3)
    square: np.ndarray  # b² - a c (n, 3, 3)
    constant: np.ndarray  # c (n,)
    along: np.ndarray  # position along a tube's axis: direction (n, 3) ...
    start: np.ndarray  # ... and origin (n,)
    tube: np.ndarray

    @classmethod
    def of(cls, centre: np.ndarray, axes: np.ndarray, tube: np.ndarray) -> _Quadrics:
        inverse = np.linalg.inv(axes)
        origin = -np.einsum("nij,nj->ni", inverse, centre)
        radial = np.where(tube[:, None], [1.0, 0.0, 1.0], 1.0)  # a tube is unbounded along its axis
        c = (radial * origin**2).sum(axis=1) - 1
        b = np.einsum("ni,nij->nj", radial * origin, inverse)
        a = np.einsum("ni,nij,nik->njk", radial, inverse, inverse)
        square = b[:, :, None] * b[:, None, :] - a * c[:, None, None]
        parts = (b, square, c, inverse[:, 1], origin[:, 1])
        linear, quadratic, constant, along, start = (part.astype(np.float32) for part in parts)
        return cls(linear, quadratic, constant, along, start, tube)

    def meet(
        self, k: int | np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether the rays (x, y, 1) meet quadric `k` (one, or one per ray), and 1 / depth."""
        q, b, c = self.square[k], self.linear[k], self.constant[k]
        # the discriminant as a polynomial in x whose coefficients depend on the row
        slope = 2 * (q[..., 0, 1] * y + q[..., 0, 2])
        rest = (q[..., 1, 1] * y + 2 * q[..., 1, 2]) * y + q[..., 2, 2]
        root = (q[..., 0, 0] * x + slope) * x + rest
        inside = (root >= 0) & (c > 0)  # c <= 0: the camera is inside
        inverse = np.sqrt(np.maximum(root, 0)) - (b[..., 0] * x + (b[..., 1] * y + b[..., 2]))
        inverse /= np.where(c > 0, c, 1)
        if np.any(self.tube[k]):
            d = self.along[k]
            axial = d[..., 0] * x + (d[..., 1] * y + d[..., 2]) + self.start[k] * inverse
            inside &= (np.abs(axial) <= inverse) | ~self.tube[k]
        inside &= inverse < 1 / NEAR
        return inside, inverse
