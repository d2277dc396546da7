"""The rendered street: exact ground truth, reproducible bytes, consistent stereo views."""

import subprocess
import sys
from itertools import pairwise

import cv2
import numpy as np
import pytest

from penumbra.errors import PenumbraError
from penumbra.offline.datasets.camvid_classes import CLASSES, PAVEMENT, ROAD, SKY, VOID
from penumbra.offline.scenes import ANOMALIES, Camera, Pose, drive, journey, render, stereo, street
from penumbra.offline.scenes.mesh import Builder, Mesh
from penumbra.offline.scenes.ray_casting import cast

SMALL = Camera(160, 120)


def same(a, b):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("image", "labels", "depth", "anomaly")
    )


def pixels(camera):
    x, y = np.meshgrid(np.arange(camera.width), np.arange(camera.height))
    return x.astype(np.float32), y.astype(np.float32)


# --- the image and its ground truth ---------------------------------------------------------------


@pytest.mark.parametrize("size", [(480, 360), (1242, 375), (97, 61), (8, 8), (33, 200)])
def test_any_size(size):
    view = render(street(2), Camera(*size))
    width, height = size
    assert view.image.shape == (height, width, 3) and view.image.dtype == np.uint8
    assert view.labels.shape == (height, width) and view.labels.dtype == np.uint8
    assert view.depth.shape == (height, width) and view.depth.dtype == np.float32
    assert view.anomaly.shape == (height, width) and view.anomaly.dtype == bool


def test_same_seed_same_bytes():
    one, two = (render(street(11, anomaly="sofa"), SMALL) for _ in range(2))
    assert same(one, two)
    assert not same(one, render(street(12, anomaly="sofa"), SMALL))


def test_same_bytes_in_another_process():
    """Nothing depends on hash order, on what was rendered before, or on the clock."""
    code = (
        "import hashlib\nfrom penumbra.offline.scenes import *\n"
        "v = render(street(7), Camera(160, 120))\n"
        "print(hashlib.sha256(v.image.tobytes() + v.depth.tobytes()).hexdigest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout


def test_every_class_occurs_and_no_other_label():
    seen = np.zeros(12, np.int64)
    for seed in range(30):
        view = render(street(seed), SMALL)
        seen += np.bincount(view.labels.ravel(), minlength=12)
        assert not view.anomaly.any()
    assert len(seen) == 12 and seen[VOID] == 0
    assert (seen[: len(CLASSES)] > 0).all(), dict(zip(CLASSES, seen, strict=False))
    # CamVid's training split: road 32 %, building 23 %, sky 17 %; the street is of that kind
    share = seen / seen.sum()
    assert 0.2 < share[ROAD] < 0.45 and 0.1 < share[1] < 0.4 and 0.08 < share[SKY] < 0.35


def test_sky_is_where_depth_is_infinite():
    for seed in range(5):
        view = render(street(seed), SMALL)
        assert np.array_equal(view.labels == SKY, np.isinf(view.depth))
        assert (view.depth > 0).all()


@pytest.mark.parametrize("pitch, roll", [(0.0, 0.0), (0.07, 0.0), (-0.03, 0.05)])
def test_road_depth_is_that_of_the_ground_plane(pitch, roll):
    """A ray d of camera axes meets y = 0 at depth h / -(R d)_y."""
    camera = Camera(320, 240, pitch=pitch, roll=roll)
    scene = street(4)
    view = render(scene, camera)
    x, y = camera.rays()
    rays = np.stack(np.broadcast_arrays(x, y[:, None], 1.0), -1)
    down = -(rays @ camera.rotation(scene.pose.yaw).T)[..., 1]
    ground = camera.height_m / np.maximum(down, 1e-9)
    ratio = view.depth[view.labels == ROAD] / ground[view.labels == ROAD]
    # zebra stripes, patches and manhole covers lie up to 4 mm on the road: 0.004 / 1.5 nearer
    assert len(ratio) > 5000
    # measured 3e-7: the float32 rounding of a sum of three terms
    assert ratio.max() < 1 + 2e-6
    assert ratio.min() > 1 - 0.004 / camera.height_m - 2e-6
    assert np.mean(np.abs(ratio - 1) < 2e-6) > 0.9
    kerb = view.depth[view.labels == PAVEMENT] / ground[view.labels == PAVEMENT]
    assert kerb.min() > 1 - 0.12 / camera.height_m - 2e-6 and kerb.max() < 1


def test_intersection_with_a_sphere():
    body = Builder(VOID)
    body.ball((0.3, 1.1, 9.0), (0.8, 0.8, 0.8))
    camera = Camera(200, 150)
    hits = cast(body.mesh(), np.array([0, 1.5, 0.0]), np.eye(3), camera)
    x, y = camera.rays()
    rays = np.stack(np.broadcast_arrays(x, y[:, None], 1.0), -1)
    to_centre = np.array([0.3, -0.4, 9.0])
    a, b = (rays**2).sum(-1), rays @ to_centre
    root = b**2 - a * (to_centre @ to_centre - 0.64)
    inside = root > 0
    assert np.mean((hits.surface == 0) != inside) < 1e-4  # float32 at the very rim
    both = inside & (hits.surface == 0)
    depth = (b - np.sqrt(np.maximum(root, 0))) / a
    # at the rim the depth changes as the root of the distance: away from it, float32's own error
    well = both & (root > 0.05 * root.max())
    assert np.abs(1 / hits.inverse_depth[well] / depth[well] - 1).max() < 1e-5


def test_neighbouring_quads_leave_no_gap():
    """A slanted wall cut into slivers of every slope shows no pixel of the background."""
    cuts = np.sort(np.concatenate([[-60, 60], np.random.default_rng(0).uniform(-60, 60, 200)]))
    body = Builder(ROAD)
    for a, b in pairwise(cuts):
        top, bottom = (
            [(x, 20, 30 + 0.1 * x) for x in (a, b)],
            [(x / 2, -20, 30 + x / 20) for x in (b, a)],
        )
        body.quad([*top, *bottom], "plain")
    hits = cast(body.mesh(), np.zeros(3), np.eye(3), Camera(480, 360))
    assert (hits.surface < len(cuts) - 1).all()


def test_near_surfaces_are_cut_at_the_near_plane():
    """A road that passes under the camera and behind it fills everything below the horizon."""
    body = Builder(ROAD)
    body.ground((-50, 50), (-40, 900), 0.0, "asphalt")
    camera = Camera(120, 91)
    hits = cast(body.mesh(), np.array([0, 1.5, 0]), np.eye(3), camera)
    _, y = camera.rays()
    rows = np.flatnonzero(y < -1.5 / 900 - 1e-6)
    wide = np.abs(camera.rays()[0]).max() * 1.5 / -y[rows] < 50
    assert (hits.surface[rows[wide]] == 0).all()


def test_empty_world_is_all_sky():
    hits = cast(Mesh.join([]), np.zeros(3), np.eye(3), Camera(16, 16))
    assert (hits.surface == 0).all()


def test_supersampling_changes_colours_only():
    scene = street(5)
    plain = render(scene, Camera(160, 120, noise=0))
    fine = render(scene, Camera(160, 120, noise=0, supersample=2))
    assert np.array_equal(plain.labels, fine.labels)
    assert np.array_equal(plain.depth, fine.depth)
    assert not np.array_equal(plain.image, fine.image)
    difference = np.abs(plain.image.astype(int) - fine.image)
    assert difference.mean() < 9  # measured 2.6 to 6.0 over ten seeds: the same scene, fewer jags


# --- stereo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 8, 21])
@pytest.mark.parametrize("camera", [Camera(noise=0), Camera.kitti(621, 188, noise=0)])
def test_right_view_is_the_left_one_shifted_by_disparity(seed, camera):
    left, right = stereo(street(seed), camera)
    x, y = pixels(camera)
    there = x - left.disparity(camera)
    met = (there >= 0) & np.isfinite(left.depth)
    depth = np.where(met, left.depth, 1)
    nearest = np.clip(np.rint(there), 0, camera.width - 1).astype(int)
    rows = y.astype(int)
    # inverse depth is linear along a row of a plane: interpolation is exact on it
    seen = cv2.remap(1 / right.depth, there, y, cv2.INTER_LINEAR)
    visible = met & (np.abs(seen * depth - 1) < 2e-3)
    # invisible pixels are hidden by something nearer at one of the two adjacent pixels
    floor = np.clip(np.floor(there), 0, camera.width - 2).astype(int)
    nearer = np.maximum(1 / right.depth[rows, floor], 1 / right.depth[rows, floor + 1])
    through = met & ~visible & (nearer * depth < 1 - 2e-3)
    # measured 0.04 to 0.8 % over 13 seeds: leaves and rims thinner than a pixel fall between the
    # centres; 86 to 96 % visible; labels agree on 99.93 % or more, the rest at edges on one plane
    assert through.sum() < 0.015 * met.sum()
    assert visible.sum() > 0.8 * met.sum()
    assert np.mean(right.labels[rows, nearest][visible] == left.labels[visible]) > 0.998
    warped = cv2.remap(right.image, there, y, cv2.INTER_LINEAR)
    error = np.abs(warped.astype(float) - left.image).mean(axis=2)[visible]
    unwarped = np.abs(right.image.astype(float) - left.image).mean(axis=2)[visible]
    # measured 1.5 to 2.4 grey levels on these seeds (median 0.7 to 1.3): interpolation of fine
    # grain, the lens blur across edges, the vignette; without the shift 10 to 20 times as much
    assert error.mean() < 3.0 and np.median(error) < 2.0
    assert error.mean() < unwarped.mean() / 8


def test_a_wrong_disparity_does_not_fit():
    """The comparison above can fail: with ten per cent off the error at least doubles."""
    camera = Camera(noise=0)
    left, right = stereo(street(3), camera)
    x, y = pixels(camera)
    errors = []
    for factor in (1.0, 1.1):
        there = x - left.disparity(camera) * np.float32(factor)
        warped = cv2.remap(right.image, there, y, cv2.INTER_LINEAR).astype(float)
        near = (left.depth < 15) & (there >= 0)
        errors.append(np.median(np.abs(warped - left.image).mean(axis=2)[near]))
    assert errors[1] > 2 * errors[0]


def test_no_baseline_no_difference():
    left, right = stereo(street(6), Camera(160, 120, baseline=0.0, noise=0))
    assert same(left, right)


def test_the_sky_has_no_disparity():
    camera = Camera(noise=0)
    left, right = stereo(street(8), camera)
    sky = ((left.labels == SKY) & (right.labels == SKY)).astype(np.uint8)
    inner = cv2.erode(sky, np.ones((5, 5)), borderType=cv2.BORDER_REPLICATE) > 0  # the lens blurs
    assert inner.sum() > 1000
    assert np.array_equal(left.image[inner], right.image[inner])


# --- a drive --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ANOMALIES)
def test_anomalies_are_void_and_marked(kind):
    view = render(street(1, anomaly=kind), Camera(240, 180))
    assert view.anomaly.sum() > 50
    assert np.array_equal(view.anomaly, view.labels == VOID)


@pytest.mark.parametrize("seed, kind", [(1, "elephant"), (5, "ball"), (9, "sofa")])
def test_the_anomaly_enters_at_its_time_and_stays(seed, kind):
    frames = list(drive(seed, 45, 10, camera=SMALL, anomaly=kind, anomaly_at=2.0))
    counts = np.array([frame.view.anomaly.sum() for frame in frames])
    assert len(frames) == 45 and frames[7].time == pytest.approx(0.7)
    assert (counts[:20] == 0).all()
    assert (counts[38:] > 100).all()
    assert counts[44] > counts[30]
    # it ends on the road in front of the vehicle
    view = frames[-1].view
    rows, columns = np.nonzero(view.anomaly)
    foot = min(rows.max() + 2, view.labels.shape[0] - 1)
    assert view.labels[foot, int(np.median(columns))] == ROAD
    # and the vehicle has stopped short of it
    assert frames[-1].scene.pose.z == frames[-2].scene.pose.z or frames[-1].time < 5.1
    assert view.depth[view.anomaly].min() > 2.0


def test_before_the_anomaly_the_drive_is_the_one_without():
    with_it = drive(4, 12, 10, camera=SMALL, anomaly_at=1.0)
    without = drive(4, 12, 10, camera=SMALL)
    equal = [same(a.view, b.view) for a, b in zip(with_it, without, strict=True)]
    assert all(equal[:10])


def test_static_points_move_with_the_ego_motion():
    camera = Camera(320, 240, noise=0)
    scene = journey(6, 3.0, speed=8.0)
    first, later = scene.at(0.0), scene.at(0.5)
    assert later.pose.z - first.pose.z == pytest.approx(4.0)
    a, b = render(first, camera), render(later, camera)
    x, y = camera.rays()
    still = np.isin(a.labels, (1, ROAD, PAVEMENT))
    rays = np.stack(np.broadcast_arrays(x, y[:, None], 1.0), -1)[still]
    eye = np.array([first.pose.x, camera.height_m, first.pose.z])
    points = eye + (rays * a.depth[still][:, None]) @ camera.rotation(first.pose.yaw).T
    column, row, depth = camera.project(points, later.pose)
    inside = (column > 1) & (column < 318) & (row > 1) & (row < 238) & (depth > 1)
    # inverse depth is linear over a plane, so interpolating it between pixels is exact there
    i, j = np.floor(row).astype(int), np.floor(column).astype(int)
    i, j = np.clip(i, 0, 238), np.clip(j, 0, 318)
    di, dj, inverse = row - i, column - j, 1 / b.depth.astype(float)
    upper = inverse[i, j] * (1 - dj) + inverse[i, j + 1] * dj
    lower = inverse[i + 1, j] * (1 - dj) + inverse[i + 1, j + 1] * dj
    seen = upper * (1 - di) + lower * di
    fits = np.abs(seen[inside] * depth[inside] - 1) < 5e-3
    # the rest is hidden by what moved in front, or lies at an edge where depths are mixed
    assert inside.sum() > 10000 and fits.mean() > 0.85
    labels = b.labels[np.rint(row[inside]).astype(int), np.rint(column[inside]).astype(int)]
    assert np.mean(labels[fits] == a.labels[still][inside][fits]) > 0.99


def test_projection_is_the_inverse_of_the_rays():
    camera = Camera(100, 80, pitch=0.1, roll=-0.2)
    pose = Pose(1.0, 5.0, 0.3)
    x, y = camera.rays()
    ray = np.array([x[70], y[20], 1.0]) * 12.5
    point = np.array([pose.x, camera.height_m, pose.z]) + camera.rotation(pose.yaw) @ ray
    assert camera.project(point, pose) == pytest.approx((70, 20, 12.5))


def test_the_world_moves_and_the_vehicle_halts():
    scene = journey(3, 20.0, anomaly_at=2.0)
    moved = [np.abs(scene.at(t + 1).moving.quads["corners"]).sum() for t in (0, 1)]
    assert moved[0] != moved[1]
    poses = [scene.at(t).pose for t in np.arange(0, 12, 0.25)]
    steps = np.diff([pose.z for pose in poses])
    assert (steps >= 0).all() and steps[0] > 1 and steps[-1] == 0
    assert (np.diff(steps) < 1e-9).all()  # it only slows down


def test_stereo_drive_gives_both_views():
    frame = next(drive(2, 1, camera=SMALL, stereo=True))
    assert same(frame.right, render(frame.scene, SMALL, right=True))
    assert not same(frame.right, frame.view)


def test_traffic_keeps_its_side():
    for side, sign in (("left", -1), ("right", 1)):
        assert np.sign(street(3, traffic=side).pose.x) == sign


# --- invalid arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, word",
    [
        (lambda: Camera(0, 100), "width"),
        (lambda: Camera(100.5, 100), "width"),
        (lambda: Camera(100, 100, focal=-1), "focal"),
        (lambda: Camera(100, 100, focal=float("nan")), "focal"),
        (lambda: Camera(100, 100, baseline=-0.1), "baseline"),
        (lambda: Camera(100, 100, supersample=0), "supersample"),
        (lambda: Camera(100, 100, height_m="tall"), "height_m"),
        (lambda: street(-1), "seed"),
        (lambda: street("one"), "seed"),
        (lambda: street(1, traffic="middle"), "traffic"),
        (lambda: street(1, length=3), "length"),
        (lambda: street(1, start=1e6), "start"),
        (lambda: street(1, anomaly="unicorn"), "unicorn"),
        (lambda: drive(1, 0), "frames"),
        (lambda: drive(1, 2.5), "frames"),
        (lambda: drive(1, 10, fps=0), "fps"),
        (lambda: drive(1, 10, speed=-3), "speed"),
        (lambda: drive(1, 10, anomaly="unicorn", anomaly_at=1.0), "unicorn"),
        (lambda: drive(1, 10, anomaly_at=-1.0), "anomaly_at"),
        (lambda: drive(1, 10, anomaly_at=float("nan")), "anomaly_at"),
    ],
)
def test_invalid_arguments_give_one_line(call, word):
    with pytest.raises(PenumbraError) as error:
        call()
    assert word in str(error.value) and "\n" not in str(error.value)
