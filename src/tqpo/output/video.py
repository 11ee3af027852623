"""Frames → a small GIF (Pillow) or an MP4 (ffmpeg, where there is one)."""

import pathlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator

import numpy as np

from tqpo.errors import ConfigError, RenderError

PALETTE = 128  # colours; a drawing from above has few
SAMPLED = 12  # frames that the palette is made from


def write_video(
    path: str | pathlib.Path, frames: Iterable[np.ndarray], frame_duration: float, width: int = 360
) -> pathlib.Path:
    """Writes uint8 frames [H, W, 3], each shown for `frame_duration` [s]; the path's suffix says in which format.

    An episode of 1000 steps at every 4th frame (250 frames of 0.08 s) takes a GIF of about 1 MB.
    """
    path = pathlib.Path(path)
    writers = {".gif": write_gif, ".mp4": write_mp4}
    if path.suffix not in writers:
        raise ConfigError(f"{path.name}: a video ends in {' or '.join(writers)}")
    if frame_duration <= 0 or width < 2:
        raise ConfigError(f"frame_duration = {frame_duration}, width = {width}: positive, and at least 2 pixels")
    path.parent.mkdir(parents=True, exist_ok=True)
    writers[path.suffix](path, scaled(frames, width), frame_duration)
    return path


def scaled(frames: Iterable[np.ndarray], width: int) -> list:
    """Images of this width and an even height (which MP4 needs too), in proportion; never enlarged."""
    from PIL import Image

    images = [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames]
    if not images:
        raise ConfigError("no frames: a video needs at least one")
    width = min(width, images[0].width) // 2 * 2
    height = max(2, round(images[0].height * width / images[0].width / 2) * 2)
    return [image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0) for image in images]


def write_gif(path: pathlib.Path, images: list, frame_duration: float) -> None:
    """One palette for all frames and no dithering: what does not change costs nothing."""
    from PIL import Image

    palette = shared_palette(images)
    first, *rest = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    duration = max(20, round(frame_duration * 100) * 10)  # ms; a GIF counts hundredths, browsers want two at least
    first.save(path, save_all=True, append_images=rest, duration=duration, loop=0, optimize=True, disposal=1)


def shared_palette(images: list):
    """Colours of some frames, spread over the episode and those that differ most from the first, by median cut.

    A colour weighs as the square root of its area; otherwise the median cut spends its colours on the background and
    the goal turns brown.
    """
    from PIL import Image

    reference = np.asarray(images[0], float)
    change = [np.abs(np.asarray(image, float) - reference).mean() for image in images]
    spread = np.linspace(0, len(images) - 1, SAMPLED // 2).astype(int)
    chosen = np.unique(np.concatenate([spread, np.argsort(change)[-SAMPLED // 2 :]]))
    pixels = np.concatenate([np.asarray(images[i]).reshape(-1, 3) for i in chosen])
    packed, area = np.unique(pixels.astype(int) @ np.array([1 << 16, 1 << 8, 1]), return_counts=True)
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], 1).astype(np.uint8)
    sheet = np.repeat(colours, np.ceil(np.sqrt(area)).astype(int), 0)
    return Image.fromarray(sheet[None]).quantize(PALETTE, method=Image.Quantize.MEDIANCUT)


def find_ffmpeg() -> str | None:
    """The program of the `imageio-ffmpeg` package, or one on the path."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe  # type: ignore[import-not-found]

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return shutil.which("ffmpeg")


def write_mp4(path: pathlib.Path, images: list, frame_duration: float) -> None:
    program = find_ffmpeg()
    if program is None:
        raise RenderError(
            "MP4 needs ffmpeg: install it (pip install imageio-ffmpeg), or write a .gif, which needs nothing"
        )
    size = f"{images[0].width}x{images[0].height}"
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{1 / frame_duration:.6g}", "-i", "-"]
    made = ["-an", "-c:v", "libx264", "-crf", "26", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
    command = [program, "-y", "-loglevel", "error", *given, *made]
    done = subprocess.run(command, input=b"".join(raw(images)), capture_output=True, check=False)
    if done.returncode:
        raise RenderError(f"ffmpeg could not write {path}: {done.stderr.decode(errors='replace').strip()}")


def raw(images: list) -> Iterator[bytes]:
    yield from (image.convert("RGB").tobytes() for image in images)
