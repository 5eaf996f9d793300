"""``hpcprof workload NAME``: argparse only, because the training environment has no click."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcprof.errors import HpcprofError
from hpcprof.workloads.image_cnn import ImageCnnOptions, train


def main(argv: list[str]) -> int:
    """Train the named workload; returns the exit code."""
    options = _parser().parse_args(argv)
    settings = {key: value for key, value in vars(options).items() if key != "name"}
    try:
        train(ImageCnnOptions(**settings))
    except HpcprofError as error:
        print(f"hpcprof workload: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _rank_and_ms(text: str) -> tuple[int, int]:
    rank, _, milliseconds = text.partition(":")
    try:
        return int(rank), int(milliseconds)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK:MILLISECONDS") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpcprof workload",
        description="Train a small model with synthetic data, instrumented with hpcprof.annotate.",
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    cnn = names.add_parser(
        "image-cnn",
        help="a small convolutional image classifier reading JPEG files",
        description="A small convolutional image classifier that reads JPEG files from disk "
        "through tf.data. The files are made at first use.",
    )
    cnn.add_argument("--strategy", choices=("horovod", "multiworker"), required=True)
    cnn.add_argument("--steps", type=int, default=60, help="optimizer updates (60)")
    cnn.add_argument("--batch", type=int, default=8, help="images per rank and step (8)")
    cnn.add_argument("--image-size", type=int, default=96, help="pixels per side (96)")
    cnn.add_argument("--width", type=int, default=16, help="channels of the first layer (16)")
    cnn.add_argument("--files", type=int, default=64, help="images on disk per rank (64)")
    cnn.add_argument("--data-dir", type=Path, default=Path("hpcprof-data"))
    cnn.add_argument("--threads", type=int, default=1, help="TensorFlow threads per rank (1)")
    cnn.add_argument(
        "--prefetch",
        type=int,
        default=1,
        help="batches read ahead (1); with 0 each step waits for its files",
    )
    cnn.add_argument(
        "--pin",
        action="store_true",
        help="bind each rank to one core, in blocks: for more ranks than cores on one machine",
    )
    cnn.add_argument(
        "--slow-input",
        type=_rank_and_ms,
        metavar="RANK:MS",
        help="make one rank wait MS milliseconds longer for each batch, to try hpcprof out",
    )
    return parser
