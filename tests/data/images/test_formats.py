import base64
import io
import struct
import zlib
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch.nn import functional

from lipt.common.errors import DataError
from lipt.data.images.formats import (
    Header,
    check_file,
    crop_flip,
    data_url,
    decode_image,
    fit_image,
    mild_augmentation,
)

Encode = Callable[..., bytes]


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def gray(rows: list[list[int]]) -> Image.Image:
    return Image.fromarray(np.array(rows, np.uint8))


def test_decodes_all_modes_to_channels_first_and_keeps_the_upper_bits_of_16() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    decoded_CHW = decode_image(saved(Image.fromarray(pixels)), (3, 2, 3))
    assert decoded_CHW.dtype == torch.uint8
    assert decoded_CHW.tolist() == pixels.transpose(2, 0, 1).tolist()
    for mode in ("1", "P", "RGBA", "LA", "CMYK"):
        image = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
        data = saved(image, "TIFF" if mode == "CMYK" else "PNG")
        for channels in (3, 1):
            assert bool((decode_image(data, (channels, 4, 4)) == 255).all()), mode
    image = Image.fromarray(np.array([[0, 255], [256, 65535]], np.uint16))
    data = saved(image)
    assert decode_image(data, (1, 2, 2)).tolist() == [[[0, 0], [1, 255]]]
    assert check_file(io.BytesIO(data)) == Header(2, 2, grayscale=True)


def test_exif_orientation_is_applied_and_transparent_pixels_are_white() -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = 6  # a quarter turn clockwise
    gray([[1, 2, 3], [4, 5, 6]]).save(file, "PNG", exif=exif)
    assert decode_image(file.getvalue(), (1, 3, 2)).tolist() == [[[4, 1], [5, 2], [6, 3]]]
    assert check_file(file) == Header(3, 2, grayscale=True)
    seen, unseen = (200, 0, 0, 255), (200, 0, 0, 0)
    glass = Image.fromarray(np.array([[seen, unseen]], np.uint8))
    assert decode_image(saved(glass), (3, 1, 2)).tolist() == [[[200, 255]], [[0, 255]], [[0, 255]]]


def glass(ink: NDArray[np.uint8], opacity: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(np.dstack([ink, ink, ink, opacity]))


# A stroke of one colour: the picture has that colour, and its ground's around it.
STROKE = np.zeros((6, 6), np.uint8)
STROKE[1:5, 2] = 255


def require_colours(image: Image.Image, ink: int, ground: int) -> None:
    expected = np.where(STROKE > 0, ink, ground).tolist()
    for channels in (1, 3):
        assert fit_image(image, channels, (6, 6)).tolist() == [expected] * channels


@pytest.mark.parametrize(
    ("ink", "ground"), [(0, 255), (255, 0), (200, 255), (240, 0), (128, 255)], ids=str
)
@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGBa", "La"])
def test_ink_on_nothing_gets_a_ground_that_it_is_seen_on(mode: str, ink: int, ground: int) -> None:
    image = glass(np.full((6, 6), ink, np.uint8), STROKE)
    for step in ("LA", "La") if mode == "La" else (mode,):
        image = image.convert(step)
    assert image.mode == mode
    require_colours(image, ink, ground)


@pytest.mark.parametrize(("ink", "ground"), [(0, 255), (255, 0)])
@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_so_does_ink_around_one_transparent_colour(mode: str, ink: int, ground: int) -> None:
    image, file = Image.fromarray(STROKE if ink else 255 - STROKE).convert(mode), io.BytesIO()
    image.save(file, "PNG", transparency=image.getpixel((0, 0)))
    opened = Image.open(file)
    assert opened.mode == mode
    require_colours(opened, ink, ground)


def test_black_and_white_ink_in_one_picture_are_put_on_gray() -> None:
    opacity, ink = np.zeros((9, 9), np.uint8), np.zeros((9, 9), np.uint8)
    opacity[1:4, 1:8] = opacity[5:8, 1:8] = 255
    ink[1:4] = 255
    pixels_HW = fit_image(glass(ink, opacity), 1, (9, 9))[0]
    assert pixels_HW[opacity == 0].tolist() == [128] * (81 - 42)
    assert pixels_HW[opacity > 0].tolist() == [255] * 21 + [0] * 21


def test_a_picture_without_a_visible_pixel_is_taken_without_transparency() -> None:
    ink = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert fit_image(glass(ink, 0 * ink), 1, (4, 4)).tolist() == [ink.tolist()]
    # Opaque ones are just as they are, whatever ground they would be put on.
    assert fit_image(glass(ink + 230, 0 * ink + 255), 1, (4, 4)).tolist() == [(ink + 230).tolist()]


def test_16_bits_keep_the_upper_ones_of_8_12_or_16_in_use() -> None:
    for values, kept in (([0, 1, 255], [0, 1, 255]), ([0, 256, 4095], [0, 16, 255])):
        image = Image.fromarray(np.array([values], np.uint16))
        assert fit_image(image, 1, (1, 3)).tolist() == [[kept]]
        as_32_bits = Image.fromarray(np.array([values], np.int32))
        assert fit_image(as_32_bits, 3, (1, 3)).tolist() == [[kept]] * 3
    with pytest.raises(DataError, match=r"values span 0\.\.65536; save it with 8 bits a channel"):
        fit_image(Image.fromarray(np.array([[0, 2**16]], np.int32)), 1, (1, 2))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "LAB", "RGBX"])
def test_other_colour_spaces_are_converted(mode: str) -> None:
    image = Image.new(mode, (2, 2))
    assert fit_image(image, 1, (2, 2)).shape == (1, 2, 2)
    assert fit_image(image, 3, (2, 2)).shape == (3, 2, 2)


def test_floating_point_files_are_refused_when_they_are_checked() -> None:
    data = saved(Image.new("F", (2, 2)), "TIFF")
    for read in (lambda: check_file(io.BytesIO(data)), lambda: decode_image(data, (1, 2, 2))):
        with pytest.raises(DataError, match=r"of the type F; save it with 8 bits a channel"):
            read()


def test_crops_the_longer_side_at_the_centre_and_scales_large_jpegs_closely() -> None:
    # 2 x 6 to 2 x 2: the scale is 1, so columns 2 and 3 stay as they are.
    image = gray([[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]])
    assert fit_image(image, 1, (2, 2)).tolist() == [[[2, 3], [12, 13]]]
    assert fit_image(image.transpose(Image.Transpose.TRANSPOSE), 1, (2, 2)).tolist() == [
        [[2, 12], [3, 13]]
    ]
    # A smooth gradient, so that only the decoder's reduced scale could make a difference.
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp, (512, 512)).copy())
    decoded = decode_image(saved(image, "JPEG"), (1, 16, 16)).numpy().astype(int)
    full = fit_image(image, 1, (16, 16)).astype(int)
    assert abs(decoded - full).max() <= 2


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "PPM", "GIF", "WEBP"])
def test_all_image_formats_are_read_but_no_truncated_file(encode: Encode, kind: str) -> None:
    data = encode(size=(40, 40), kind=kind)
    assert check_file(io.BytesIO(data)) == Header(40, 40, grayscale=False)
    assert decode_image(data, (3, 12, 10)).shape == (3, 12, 10)
    data = data[: int(len(data) * 0.9)]
    with pytest.raises(DataError, match="it is not a whole image"):
        decode_image(data, (3, 40, 40))
    with pytest.raises(DataError, match="it is not a whole image"):
        check_file(io.BytesIO(data))


def test_refuses_other_files_and_images_that_declare_too_many_pixels() -> None:
    with pytest.raises(DataError, match="it is not a whole image: the file is empty"):
        decode_image(b"", (3, 8, 8))
    words = "it is not a whole image: it is in none of the formats JPEG, PNG, WEBP, "
    for other in (b"\xff\xd8\xff", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        with pytest.raises(DataError, match=words) as caught:
            decode_image(other, (3, 8, 8))
        assert "object at" not in str(caught.value)
    header = struct.pack(">IIBBBBB", 8200, 8200, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    data += struct.pack(">I", zlib.crc32(chunk))
    data += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    with pytest.raises(DataError, match=r"8200 x 8200 pixels, over the limit of 67108864"):
        decode_image(data, (1, 8, 8))


@pytest.mark.parametrize("size", [(1, 2**16 + 1), (2**16 + 1, 1)])
def test_a_side_is_limited_before_anything_is_decoded(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image.new("1", size)
    data = saved(image)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("decoded"))
    for read in (
        lambda: check_file(io.BytesIO(data)),
        lambda: decode_image(data, (1, 8, 8)),
        lambda: fit_image(image, 1, (8, 8)),
    ):
        with pytest.raises(DataError, match=r"65537.* pixels, .* or of 65536 a side"):
            read()


@given(
    data=st.binary(max_size=60),
    prefix=st.sampled_from(
        [b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"P6 3 3 255\n", b"GIF89a", b"II*\0"]
    ),
)
@pytest.mark.filterwarnings("ignore")
def test_random_bytes_are_refused_or_decoded(data: bytes, prefix: bytes) -> None:
    try:
        decoded = decode_image(prefix + data, (3, 4, 4))
    except DataError:
        return
    assert decoded.shape == (3, 4, 4)


def test_small_pictures_keep_every_pixel_and_large_ones_are_scaled_down() -> None:
    small_CHW = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    kind, _, content = data_url(small_CHW, 64).partition(",")
    assert kind == "data:image/png;base64"
    assert torch.equal(decode_image(base64.b64decode(content), (3, 5, 7)), small_CHW)
    large_CHW = torch.randint(0, 256, (3, 300, 150), dtype=torch.uint8)
    kind, _, content = data_url(large_CHW, 64).partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (32, 64)
    assert len(content) < 8000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(50, 3, 32, 32), (50, 1, 8, 8), (50, 3, 5, 9)], ids=str)
def test_every_augmented_image_is_a_crop_or_mirrored_crop(shape: tuple[int, int, int, int]) -> None:
    images_BCHW = torch.randint(1, 256, shape, generator=seeded(1)).to(torch.uint8)
    before = images_BCHW.clone()
    cropped = crop_flip(images_BCHW, generator=seeded())
    padded = functional.pad(images_BCHW, [4, 4, 4, 4])
    _, _, height, width = shape
    for index, image in enumerate(cropped):
        crops = [
            padded[index, :, top : top + height, left : left + width]
            for top in range(9)
            for left in range(9)
        ]
        assert any(torch.equal(image, crop) or torch.equal(image.flip(-1), crop) for crop in crops)
    assert torch.equal(images_BCHW, before)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((1, 8, 8), (0, False)),
        ((3, 27, 64), (0, False)),
        ((1, 28, 28), (3, False)),
        ((3, 32, 40), (4, True)),
    ],
)
def test_mild_augmentation_shifts_images_of_28_pixels_and_mirrors_colour_images(
    shape: tuple[int, int, int], found: tuple[int, bool]
) -> None:
    assert mild_augmentation(shape) == found


def test_offsets_and_flips_are_uniform_and_drawn_per_image() -> None:
    # One bright pixel off the middle says where the crop lay and whether it was flipped.
    num_images = 20_000
    images_BCHW = torch.zeros(num_images, 1, 9, 40, dtype=torch.uint8)
    images_BCHW[:, :, 4, 10] = 1
    places = crop_flip(images_BCHW, generator=seeded()).flatten(1).argmax(dim=1)
    rows, columns = places // 40, places % 40
    # Row 4 moves to 0..8; column 10 to 6..14, and mirrored to 25..33.
    flipped = columns >= 20
    shifts = torch.where(flipped, columns - 25, columns - 6)
    cells = (rows * 9 + shifts) * 2 + flipped.long()
    observed = torch.bincount(cells, minlength=162).double()
    assert len(observed) == 162
    expected = num_images / 162
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # 161 degrees of freedom: mean 161, standard deviation 18; four of them either way.
    assert 161 - 4 * 18 < chi_square < 161 + 4 * 18
