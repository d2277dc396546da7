"""ROS messages to arrays and back, without ROS: any object with a message's fields will do.

What arrives may be anything. A message that does not add up is a ConversionError with a reason
that can be counted, never a crash and never a picture of somebody else's memory.
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
REASONS = ("encoding", "size", "step", "data", "decode", "camera_info")


class ConversionError(PenumbraError):
    """The message cannot be read; `reason` is one of REASONS, for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ImageMessage(Protocol):
    """The fields of sensor_msgs/Image, besides its header."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any


class CompressedImageMessage(Protocol):
    """The fields of sensor_msgs/CompressedImage, besides its header."""

    format: str
    data: Any


@dataclass(frozen=True)
class _Encoding:
    """How the pixels of an `Image` lie in its bytes, and the OpenCV codes that make colour of it.

    A code of None means that the channels already are what is wanted.
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
# OpenCV names a Bayer pattern by the second and third pixel of its second row: RGGB is "BG" there.
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
# What a decoded JPEG or PNG is, by the number of its channels and their width.
_DECODED = {(1, 1): "mono8", (1, 2): "mono16", (3, 1): "bgr8", (4, 1): "bgra8"}
_DECODED_16 = {3: _Encoding(3, None, cv2.COLOR_BGR2RGB), 4: ENCODINGS["bgra8"]}


def check_image(message: ImageMessage) -> None:
    """Refuse a sensor_msgs/Image that `image_of` cannot read, without a look at its pixels.

    For whoever may not wait: it takes some microseconds, whatever the size.
    """
    _rows(message, _encoding(message))


def check_compressed_image(message: CompressedImageMessage) -> None:
    """Refuse a sensor_msgs/CompressedImage that is not a whole JPEG or PNG of a sane size.

    Without decoding it, so that `compressed_image_of` may still find damage inside the picture.
    A JPEG takes some microseconds; a PNG, whose checksums are computed, about a millisecond per
    megabyte.
    """
    try:
        _check_size(*image_size(_file(message)))
    except ImageFileError as error:
        raise _unreadable(error) from error


def image_of(message: ImageMessage, channel_order: ChannelOrder) -> np.ndarray:
    """The picture in a sensor_msgs/Image: `uint8`, height x width x 3, in one piece.

    Where the bytes already are that picture, they are not copied: it then shares the message's.
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
    """The picture in a sensor_msgs/CompressedImage, JPEG or PNG: `uint8`, height x width x 3.

    `format` says what was compressed and as what ("rgb8; jpeg compressed bgr8"). JPEG and PNG know
    their own colours; it is only believed where they cannot: a Bayer pattern stored as grey, and
    red and blue swapped on purpose ("compressed rgb8").
    """
    try:
        # As the file has it: 16 bits stay 16, and no turning by EXIF, of which CameraInfo
        # knows nothing.
        decoded = decode_image(_file(message), cv2.IMREAD_UNCHANGED)
    except ImageFileError as error:
        raise _unreadable(error) from error
    _, stored = _format(message.format)
    channels = 1 if decoded.ndim == 2 else decoded.shape[2]
    name = _DECODED.get((channels, decoded.itemsize))
    encoding = _DECODED_16.get(channels) if name is None else ENCODINGS[name]
    if encoding is None or decoded.dtype not in (np.uint8, np.uint16):
        raise ConversionError(
            "decode", f"the compressed image has {channels} channels of {decoded.dtype}"
        )
    if channels == 1 and stored.startswith("bayer_"):
        if name != "mono8" or stored not in ENCODINGS:
            raise ConversionError(
                "encoding", f"the compressed image is a pattern of {_short(stored)}: debayer it"
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
    """Put `image` into a sensor_msgs/Image, whose header stays as it is; gives the message back."""
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
            f"an array of {image.dtype}, {' x '.join(map(str, image.shape))}, is no image of "
            f"encoding {_short(encoding)}",
        )
    message.height, message.width = image.shape[:2]
    message.encoding = encoding
    message.is_bigendian = int(sys.byteorder == "big")
    message.step = message.width * channels * image.itemsize
    # An array.array is taken over as it is; rclpy looks at anything else element by element.
    data = array.array("B")
    data.frombytes(np.ascontiguousarray(image).reshape(-1).view(np.uint8).data)
    message.data = data
    return message


def _encoding(message: ImageMessage) -> _Encoding:
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        raise ConversionError(
            "encoding",
            f"images of encoding {_short(message.encoding)} cannot be read: publish one of "
            f"{', '.join(ENCODINGS)}",
        )
    return encoding


def _check_size(width: int, height: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ConversionError(
            "size", f"an image of {width}x{height} pixels cannot be read: check its source"
        )


def _rows(message: ImageMessage, encoding: _Encoding) -> np.ndarray:
    """A view of the message's bytes, height x bytes of a row, if they add up."""
    height, width, step = message.height, message.width, message.step
    _check_size(width, height)
    if encoding.even_width and width % 2:
        raise ConversionError(
            "size", f"an image of encoding {message.encoding} has an even width, not {width}"
        )
    row = width * encoding.pixel_bytes
    if step < row:
        raise ConversionError(
            "step",
            f"an image of {width}x{height} {message.encoding} has rows of {row} bytes, and its "
            f"step is {step}",
        )
    data = _buffer(message.data)
    if data.size < step * height:
        raise ConversionError(
            "data",
            f"an image of {height} rows of {step} bytes has only {data.size} bytes of data",
        )
    return data[: step * height].reshape(height, step)[:, :row]


def _pixels(message: ImageMessage, encoding: _Encoding) -> np.ndarray:
    """The message's bytes as height x width (x channels), not copied if they are of one byte."""
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
            "encoding", "the compressed image holds depth, not a picture: subscribe to a camera"
        )
    return bytes(_buffer(message.data))


def _unreadable(error: ImageFileError) -> ConversionError:
    return ConversionError(
        error.reason, f"the compressed image is {error}: check what publishes it"
    )


def _buffer(data: Any) -> np.ndarray:
    """The bytes of a message, not copied where they are bytes already."""
    try:
        if isinstance(data, list | tuple):
            data = bytes(data)
        return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    except (TypeError, ValueError) as error:
        raise ConversionError("data", f"the image's data are no bytes ({error})") from error


def _colour(pixels: np.ndarray, code: int) -> np.ndarray:
    try:
        return _eight_bits(cv2.cvtColor(pixels, code))
    except cv2.error as error:
        height, width = pixels.shape[:2]
        raise ConversionError(
            "size", f"OpenCV cannot convert an image of {width}x{height}: {error.err}"
        ) from error


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    """0 to 65535 onto 0 to 255, to the nearest; 8 bits stay as they are."""
    return pixels if pixels.dtype == np.uint8 else cv2.convertScaleAbs(pixels, alpha=255 / 65535)


def _format(text: str) -> tuple[str, str]:
    """Of "rgb8; jpeg compressed bgr8": the middle, and what was stored ("bgr8").

    A name alone ("jpeg", "rgb8") says nothing of the colours, as in image_transport's own reader.
    """
    declared, both, compression = str(text).partition(";")
    stored = compression.partition("compressed")[2].strip()
    return compression.lower(), stored or (declared.strip() if both else "")


def _short(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _by_cv_bridge(pixels: np.ndarray, encoding: _Encoding, order: ChannelOrder) -> np.ndarray:
    """The distribution's conversion, of pixels that have been checked and lie row by row.

    Left alone with the message it shears a picture whose step is no multiple of its pixels, and
    with numpy 2 it fails on the other endianness.
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
    """The encodings that this machine's cv_bridge converts, found by trying; mostly all or none."""
    converted = set()
    for encoding in set(ENCODINGS.values()):
        pixels = np.zeros((4, 4, encoding.channels)[: 2 + (encoding.channels > 1)], encoding.dtype)
        # Its compiled part is only loaded now, and may fit neither numpy nor OpenCV: any error
        # whatsoever means that it is not to be used.
        with contextlib.suppress(Exception):
            if _by_cv_bridge(pixels, encoding, "bgr").shape == (4, 4, 3):
                converted.add(encoding)
    return frozenset(converted)
