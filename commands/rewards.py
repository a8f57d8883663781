"""`otca rewards check`: looks at published weights of rewards."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("rewards", help="check published weights of rewards")
    check = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "check",
        help="are these the published weights, and does this version score by them as it should?",
        description=_run.__doc__,
    )
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file or folder with published weights")
    check.add_argument(
        "--kind", help="clip_t, aesthetic, pickscore, hpsv2 or image_reward (default: by what is in the file)"
    )
    check.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the reward, such as tokenizer=FOLDER. May be given more than once",
    )
    check.add_argument(
        "--output", type=options.folder, default=Path(), metavar="DIR", help="of the files that it writes"
    )
    check.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 … (default cpu)")
    check.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Compares layout, sizes and a public hash; asks for orders that any right model has on five pictures; compares with a second
    implementation on the same weights, and with the reference in the pack; and writes what it found as KIND-HASH.json, which you
    can contribute as such a reference."""
    from ..host.terminal import quiet_libraries
    from ..study import reward_check

    if arguments.kind and arguments.kind not in reward_check.PATHS:
        raise ValueError(f"--kind {arguments.kind!r} cannot be checked. Fix: one of {', '.join(reward_check.PATHS)}")
    given = dict(_pair(text) for text in arguments.option)
    options.user_names(*arguments.files, *given.values())
    quiet_libraries()
    wrong = False
    for file in arguments.files:
        checked = reward_check.check(file, arguments.kind or "", given, arguments.device)
        print(reward_check.table(checked))
        if checked.record is not None:
            print(f"\nwritten: {reward_check.write_reference(checked, arguments.output)}")
        print("\n" + ("something is wrong: see above" if checked.wrong else _CONTRIBUTE) + "\n")
        wrong |= checked.wrong
    return 1 if wrong else 0


_CONTRIBUTE = (
    "nothing is wrong. To contribute that file as a reference, put it into assets/reward_references by a pull request"
)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--option {text!r} has no value. Fix: NAME=VALUE, such as tokenizer=/models/clip")
    return name, value
