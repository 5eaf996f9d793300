"""What the command lines of the in-job verbs have in common."""

from __future__ import annotations

import argparse


def new_parser(verb: str, description: str) -> argparse.ArgumentParser:
    """A parser for ``hpcprof <verb>``, with the description as it is written.

    Options are not abbreviated: a job script must mean the same with every version.
    """
    return argparse.ArgumentParser(
        prog=f"hpcprof {verb}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
