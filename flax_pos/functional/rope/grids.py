"""Positions on several axes: text mixed with image and video grids, and vision towers."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Int

from flax_pos.functional.rope.settings import as_length


class Grid(NamedTuple):
    """An image or a video, in patches before merging."""

    time: int
    height: int
    width: int
    interval: float = 1.0
    """Time positions between two frames (Qwen2.5-VL: tokens per second times seconds per frame);
    1 for images."""


def mrope_positions(
    segments: Sequence[int | Grid | tuple[Any, ...]], *, merge_size: int = 2, start: int = 0
) -> tuple[Int[np.ndarray, "3 T"], int]:
    """Time, height and width positions of one row of text and vision tokens.

    Text counts on all axes alike. A grid that begins at position p puts the token of frame t, row
    r and column c of its merged grid at `(p + floor(t * interval), p + r, p + c)`; what follows it
    begins at `p + max(height, width) // merge_size` (Wang et al. 2024, arXiv:2409.12191).

    Args:
      segments: numbers of text tokens and grids, in order.
      merge_size: patches per token along height and along width.
      start: position of the first token.

    Returns:
      int32 positions, and the delta of decoding: the token generated after `n` tokens (counted
      from this row's start) has position `n + delta` on every axis.

    Raises:
      ValueError: a grid that merge_size does not divide, or a size below 1.

    Examples:
      >>> positions, delta = mrope_positions([2, Grid(1, 4, 6), 1])
      >>> positions.tolist()
      [[0, 1, 2, 2, 2, 2, 2, 2, 5], [0, 1, 2, 2, 2, 3, 3, 3, 5], [0, 1, 2, 3, 4, 2, 3, 4, 5]]
      >>> delta
      -3
    """
    at, parts = start, []
    for segment in segments:
        if isinstance(segment, int | np.integer):
            if isinstance(segment, bool) or segment < 0:
                raise ValueError(f"a number of text tokens must not be below 0, got {segment!r}")
            parts.append(np.broadcast_to(at + np.arange(segment), (3, segment)))
            at += int(segment)
            continue
        grid = Grid(*cast(tuple[Any, ...], segment))
        frames, height, width = (
            as_length(getattr(grid, name), name) for name in ("time", "height", "width")
        )
        if height % merge_size or width % merge_size:
            raise ValueError(f"merge_size {merge_size} does not divide the grid {height} x {width}")
        t, r, c = np.indices((frames, height // merge_size, width // merge_size)).reshape(3, -1)
        parts.append(at + np.stack([np.floor(t * grid.interval).astype(np.int64), r, c]))
        at += max(height, width) // merge_size
    positions = np.concatenate([np.zeros((3, 0), np.int64), *parts], 1)
    largest = int(positions.max()) if positions.size else start - 1
    return positions.astype(np.int32), largest + 1 - positions.shape[1]


def grid_segments(
    ids: Sequence[int],
    *,
    image_token_id: int | None = None,
    video_token_id: int | None = None,
    images: Sequence[Sequence[int]] = (),
    videos: Sequence[Sequence[float]] = (),
    merge_size: int = 2,
) -> list[int | Grid]:
    """The segments of `mrope_positions` out of token ids with placeholders.

    Args:
      ids: one row of token ids, without padding.
      image_token_id, video_token_id: placeholder ids, one per merged patch.
      images, videos: `(time, height, width)` in patches, in order of appearance; a video may have
        its interval as fourth member.

    Raises:
      ValueError: placeholders and grids do not match.
    """
    segments: list[int | Grid] = []
    waiting = {image_token_id: list(images), video_token_id: list(videos)}
    waiting.pop(None, None)
    ids, at = [int(i) for i in ids], 0
    while at < len(ids):
        if ids[at] not in waiting:
            text = next((i for i in range(at, len(ids)) if ids[i] in waiting), len(ids))
            segments.append(text - at)
            at = text
            continue
        if not waiting[ids[at]]:
            raise ValueError(f"token {at} is a placeholder ({ids[at]}) without a grid")
        grid = Grid(*waiting[ids[at]].pop(0))  # type: ignore[arg-type]
        count = grid.time * grid.height * grid.width // merge_size**2
        if ids[at : at + count] != [ids[at]] * count:
            raise ValueError(
                f"the grid {tuple(grid)} needs {count} placeholders from token {at} on"
            )
        segments.append(grid)
        at += count
    left = [g for grids in waiting.values() for g in grids]
    if left:
        raise ValueError(f"{len(left)} grids have no placeholders, the first is {tuple(left[0])}")
    return segments


def grid_positions(
    height: int, width: int, *, merge_size: int = 1, frames: int = 1
) -> Int[np.ndarray, "2 T"]:
    """Row and column of every patch of an image or of each frame, for a vision tower.

    Patches come row by row; with a `merge_size`, block by block, the patches that are merged into
    one token next to each other (Qwen-VL towers). Llama 4 counts rows and columns from 1 and has
    its class token at 0.

    Examples:
      >>> grid_positions(2, 4, merge_size=2).tolist()
      [[0, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 2, 3, 2, 3]]
    """
    if height % merge_size or width % merge_size:
        raise ValueError(f"merge_size {merge_size} does not divide the grid {height} x {width}")
    at = np.indices((height, width), np.int32)
    blocks = (2, height // merge_size, merge_size, width // merge_size, merge_size)
    at = at.reshape(blocks).swapaxes(2, 3).reshape(2, -1)
    return np.tile(at, (1, frames))
