"""ROS messages to arrays and back, without ROS: any object with the same fields works.

Input is untrusted. An inconsistent message raises ConversionError with a reason that can be
counted; it never crashes the node or reads memory beyond the message.
"""

from __future__ import annotations

import array
import contextlib
import functools
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol, TypeVar

import cv2
import numpy as np

from penumbra.errors import PenumbraError
from penumbra.image_files import MAX_PIXELS, ImageFileError, decode_image, image_size

ChannelOrder = Literal["bgr", "rgb"]
REASONS = ("encoding", "size", "step", "data", "decode", "stamp", "camera_info")


class ConversionError(PenumbraError):
    """The message cannot be converted; `reason` is one of REASONS, for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ImageMessage(Protocol):
    """The fields of sensor_msgs/Image, except its header."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any


class CompressedImageMessage(Protocol):
    """The fields of sensor_msgs/CompressedImage, except its header."""

    format: str
    data: Any


@dataclass(frozen=True)
class _Encoding:
    """Memory layout of the pixels of an `Image`, and the OpenCV codes of their conversion.

    A code of None means that no conversion is needed.
    """

    channels: int
    to_bgr: int | None
    to_rgb: int | None
    dtype: type[np.generic] = np.uint8
    even_width: bool = False

    @property
    def pixel_bytes(self) -> int:
        return self.channels * np.dtype(self.dtype).itemsize

    def code(self, order: ChannelOrder) -> int | None:
        return self.to_bgr if order == "bgr" else self.to_rgb


_UYVY = _Encoding(2, cv2.COLOR_YUV2BGR_UYVY, cv2.COLOR_YUV2RGB_UYVY, even_width=True)
_YUYV = _Encoding(2, cv2.COLOR_YUV2BGR_YUY2, cv2.COLOR_YUV2RGB_YUY2, even_width=True)

# The names are those of sensor_msgs/image_encodings.hpp, the conversions those of cv_bridge.
# OpenCV names a Bayer pattern by the second and third pixel of its second row: RGGB is "BG".
ENCODINGS = {
    "bgr8": _Encoding(3, None, cv2.COLOR_BGR2RGB),
    "rgb8": _Encoding(3, cv2.COLOR_RGB2BGR, None),
    "bgra8": _Encoding(4, cv2.COLOR_BGRA2BGR, cv2.COLOR_BGRA2RGB),
    "rgba8": _Encoding(4, cv2.COLOR_RGBA2BGR, cv2.COLOR_RGBA2RGB),
    "mono8": _Encoding(1, cv2.COLOR_GRAY2BGR, cv2.COLOR_GRAY2RGB),
    "mono16": _Encoding(1, cv2.COLOR_GRAY2BGR, cv2.COLOR_GRAY2RGB, np.uint16),
    "bayer_rggb8": _Encoding(1, cv2.COLOR_BayerBG2BGR, cv2.COLOR_BayerBG2RGB),
    "bayer_bggr8": _Encoding(1, cv2.COLOR_BayerRG2BGR, cv2.COLOR_BayerRG2RGB),
    "bayer_gbrg8": _Encoding(1, cv2.COLOR_BayerGR2BGR, cv2.COLOR_BayerGR2RGB),
    "bayer_grbg8": _Encoding(1, cv2.COLOR_BayerGB2BGR, cv2.COLOR_BayerGB2RGB),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
}
# Encoding of a decoded JPEG or PNG, by number of channels and bytes per channel.
_DECODED = {(1, 1): "mono8", (1, 2): "mono16", (3, 1): "bgr8", (4, 1): "bgra8"}
_DECODED_16 = {3: _Encoding(3, None, cv2.COLOR_BGR2RGB), 4: ENCODINGS["bgra8"]}


def check_image(message: ImageMessage, max_pixels: float = MAX_PIXELS) -> None:
    """Reject a sensor_msgs/Image that `image_of` cannot convert, without reading its pixels.

    Takes some microseconds at any size, so that it suits a callback.
    """
    _rows(message, _encoding(message))
    _check_size(message.width, message.height, max_pixels)


def check_compressed_image(message: CompressedImageMessage, max_pixels: float = MAX_PIXELS) -> None:
    """Reject a sensor_msgs/CompressedImage that is not a complete JPEG or PNG of plausible size.

    The image is not decoded: `compressed_image_of` may still find it damaged. A JPEG takes some
    microseconds; a PNG, whose checksums are verified, about a millisecond per megabyte.
    """
    try:
        _check_size(*image_size(_file(message)), max_pixels)
    except ImageFileError as error:
        raise _unreadable(error) from error


def image_of(message: ImageMessage, channel_order: ChannelOrder) -> np.ndarray:
    """Convert a sensor_msgs/Image to `uint8`, height x width x 3, contiguous.

    If no conversion is needed, the result shares the memory of the message.
    """
    encoding = _encoding(message)
    pixels = _pixels(message, encoding)
    code = encoding.code(channel_order)
    if code is None:
        return np.ascontiguousarray(pixels)
    if encoding in _bridged():
        return _by_cv_bridge(pixels, encoding, channel_order)
    return _colour(pixels, code)


def compressed_image_of(message: CompressedImageMessage, channel_order: ChannelOrder) -> np.ndarray:
    """Decode a sensor_msgs/CompressedImage, JPEG or PNG, to `uint8`, height x width x 3.

    `format` states the source and stored encoding ("rgb8; jpeg compressed bgr8"). JPEG and PNG
    define their own colours, so `format` matters in two cases only: a Bayer pattern stored as
    grey, and red and blue swapped on purpose ("compressed rgb8").
    """
    try:
        # Unchanged: 16 bits stay 16, and EXIF rotation is ignored, as CameraInfo does not
        # include it.
        decoded = decode_image(_file(message), cv2.IMREAD_UNCHANGED)
    except ImageFileError as error:
        raise _unreadable(error) from error
    _, stored = _format(message.format)
    channels = 1 if decoded.ndim == 2 else decoded.shape[2]
    name = _DECODED.get((channels, decoded.itemsize))
    encoding = _DECODED_16.get(channels) if name is None else ENCODINGS[name]
    if encoding is None or decoded.dtype not in (np.uint8, np.uint16):
        raise ConversionError(
            "decode", f"the compressed image has {channels} channels of {decoded.dtype}: send bgr8"
        )
    if channels == 1 and stored.startswith("bayer_"):
        if name != "mono8" or stored not in ENCODINGS:
            raise ConversionError(
                "encoding", f"the compressed image is a mosaic of {_short(stored)}: debayer it"
            )
        encoding = ENCODINGS[stored]
    elif channels == 3 and stored.startswith("rgb"):
        channel_order = "rgb" if channel_order == "bgr" else "bgr"
    code = encoding.code(channel_order)
    return _eight_bits(decoded) if code is None else _colour(decoded, code)


Message = TypeVar("Message", bound=ImageMessage)

_ARRAYS = {
    "mono8": (np.uint8, 1),
    "rgb8": (np.uint8, 3),
    "bgr8": (np.uint8, 3),
    "mono16": (np.uint16, 1),
    "16UC1": (np.uint16, 1),
    "32FC1": (np.float32, 1),
}


def fill_image(message: Message, image: np.ndarray, encoding: str) -> Message:
    """Copy `image` into a sensor_msgs/Image, keeping its header; returns the message."""
    dtype, channels = _ARRAYS.get(encoding, (None, 0))
    wanted = (2,) if channels == 1 else (3,)
    if (
        dtype is None
        or image.dtype != dtype
        or image.ndim not in wanted
        or (image.ndim == 3 and image.shape[2] != channels)
    ):
        raise ConversionError(
            "encoding",
            f"an array of {image.dtype}, {' x '.join(map(str, image.shape))}, does not match "
            f"encoding {_short(encoding)}",
        )
    message.height, message.width = image.shape[:2]
    message.encoding = encoding
    message.is_bigendian = int(sys.byteorder == "big")
    message.step = message.width * channels * image.itemsize
    # rclpy takes over an array.array directly, but checks other types element by element.
    data = array.array("B")
    data.frombytes(np.ascontiguousarray(image).reshape(-1).view(np.uint8).data)
    message.data = data
    return message


def _encoding(message: ImageMessage) -> _Encoding:
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        raise ConversionError(
            "encoding",
            f"unsupported image encoding {_short(message.encoding)}: publish one of "
            f"{', '.join(ENCODINGS)}",
        )
    return encoding


def _check_size(width: int, height: int, max_pixels: float = MAX_PIXELS) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ConversionError(
            "size", f"invalid image size {width}x{height}: check the camera driver"
        )
    if height * width > max_pixels:
        raise ConversionError(
            "size",
            f"the image has {width}x{height} pixels, over max_megapixels "
            f"({max_pixels / 1e6:g}): set the camera to a smaller size",
        )


def _rows(message: ImageMessage, encoding: _Encoding) -> np.ndarray:
    """A view of the message's bytes, height x bytes per row, if their sizes are consistent."""
    height, width, step = message.height, message.width, message.step
    _check_size(width, height)
    if encoding.even_width and width % 2:
        raise ConversionError(
            "size", f"an image of encoding {message.encoding} must have an even width, not {width}"
        )
    row = width * encoding.pixel_bytes
    if step < row:
        raise ConversionError(
            "step",
            f"inconsistent step: rows of {width} pixels {message.encoding} have {row} bytes, step "
            f"is {step}",
        )
    data = _buffer(message.data)
    if data.size < step * height:
        raise ConversionError(
            "data",
            f"truncated data: {height} rows of {step} bytes, but only {data.size} bytes",
        )
    return data[: step * height].reshape(height, step)[:, :row]


def _pixels(message: ImageMessage, encoding: _Encoding) -> np.ndarray:
    """The message's bytes as height x width (x channels); 8-bit data is not copied."""
    rows = _rows(message, encoding)
    if encoding.dtype is not np.uint8:
        order: Literal[">", "<"] = ">" if message.is_bigendian else "<"
        rows = np.ascontiguousarray(rows).view(np.dtype(encoding.dtype).newbyteorder(order))
        rows = rows.astype(encoding.dtype, copy=False)
    if encoding.channels == 1:
        return rows
    return rows.reshape(message.height, message.width, encoding.channels)


def _file(message: CompressedImageMessage) -> bytes:
    compression, _ = _format(message.format)
    if "compresseddepth" in compression:
        raise ConversionError(
            "encoding", "the compressed image holds depth, not colour: subscribe to a camera image"
        )
    return bytes(_buffer(message.data))


def _unreadable(error: ImageFileError) -> ConversionError:
    return ConversionError(error.reason, f"the compressed image is {error}: check its publisher")


def _buffer(data: Any) -> np.ndarray:
    """The data of a message as an array; bytes and arrays are not copied."""
    try:
        if isinstance(data, list | tuple):
            data = bytes(data)
        return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    except (TypeError, ValueError) as error:
        raise ConversionError("data", f"the image data are not bytes ({error})") from error


def _colour(pixels: np.ndarray, code: int) -> np.ndarray:
    try:
        return _eight_bits(cv2.cvtColor(pixels, code))
    except cv2.error as error:
        height, width = pixels.shape[:2]
        raise ConversionError(
            "size", f"OpenCV cannot convert an image of {width}x{height}: {error.err}"
        ) from error


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    """Scale 0..65535 to 0..255, rounded to nearest; 8-bit data is returned unchanged."""
    return pixels if pixels.dtype == np.uint8 else cv2.convertScaleAbs(pixels, alpha=255 / 65535)


def _format(text: str) -> tuple[str, str]:
    """Compression and stored encoding ("bgr8") of a format like "rgb8; jpeg compressed bgr8".

    A single word ("jpeg", "rgb8") states no encoding, as in image_transport's own decoder.
    """
    declared, both, compression = str(text).partition(";")
    stored = compression.partition("compressed")[2].strip()
    return compression.lower(), stored or (declared.strip() if both else "")


def _short(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _by_cv_bridge(pixels: np.ndarray, encoding: _Encoding, order: ChannelOrder) -> np.ndarray:
    """Convert with cv_bridge, given validated pixels without row padding.

    On the original message, cv_bridge shears images whose step is not a multiple of the pixel
    size, and fails on foreign endianness with numpy 2.
    """
    from cv_bridge import CvBridge

    name = next(name for name, known in ENCODINGS.items() if known == encoding)
    message = SimpleNamespace(
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=name,
        is_bigendian=sys.byteorder == "big",
        step=pixels.shape[1] * encoding.pixel_bytes,
        data=np.ascontiguousarray(pixels),
    )
    converted: np.ndarray = CvBridge().imgmsg_to_cv2(message, f"{order}8")
    return converted


@functools.cache
def _bridged() -> frozenset[_Encoding]:
    """The encodings that the installed cv_bridge converts, found by trying each."""
    converted = set()
    for encoding in set(ENCODINGS.values()):
        pixels = np.zeros((4, 4, encoding.channels)[: 2 + (encoding.channels > 1)], encoding.dtype)
        # Its compiled part is loaded here and may be incompatible with numpy or OpenCV: on any
        # error it is not used.
        with contextlib.suppress(Exception):
            if _by_cv_bridge(pixels, encoding, "bgr").shape == (4, 4, 3):
                converted.add(encoding)
    return frozenset(converted)
