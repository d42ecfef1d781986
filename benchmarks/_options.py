"""Options that several benchmarks share."""

import argparse
import ast


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """``--set field=value``, repeated: fields of the model's configuration; values are Python literals."""
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        type=_override,
        action="append",
        default=[],
        help="a field of the model's configuration, such as num_layers=48 or remat=True",
    )


def _override(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}; expected FIELD=VALUE, VALUE a Python literal") from error
