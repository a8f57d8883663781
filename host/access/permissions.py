"""Permissions of a workflow, since it is often a stranger's: which files, hosts and downloads it may name, and what only the
user may allow. docs/security.md says the same for users.

Code that uses a name from a graph asks here first, at the place where it uses it, so that a linked value is checked too. The
user allows more by the environment, by the command line (which sets the environment, so that child processes have it too), or
by a click on the page, which is remembered in a file of the user's. Imports no torch.
"""

from __future__ import annotations

import ntpath
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from .. import comfyui, environment, paths
from ..errors import Expected
from ..places import place
from ..text import shortened
from . import opening, remembered
from .addresses import HOST, host_of, is_hub_id, is_loopback, wandb_host
from .opening import SHOWN, shown

FOLDERS, HOSTS, DOWNLOADS = "OTCA_ALLOW_FOLDERS", "OTCA_ALLOW_HOSTS", "OTCA_ALLOW_DOWNLOADS"
PYTHON = "OTCA_ALLOW_PYTHON_REWARDS"  # folders whose files may be run as rewards; none by default
# Whether requests may start trainings: this variable with the value 1, or a file of that name in ComfyUI's user folder, into
# which neither a node nor a route writes.
TRAININGS, TRAININGS_FILE = "OTCA_ALLOW_TRAININGS", "otca_allow_trainings"
FROM_PAGE = (
    "OTCA_STARTED_BY_PAGE"  # set for a trainer that the page started: the folder it runs in is not the user's word
)
READ, POST, DOWNLOAD, RUN = "read", "post", "download", "run"
# By which variable the user allows a kind, and what stands between its entries.
_VARIABLES = {READ: (FOLDERS, os.pathsep), POST: (HOSTS, ","), DOWNLOAD: (DOWNLOADS, ","), RUN: (PYTHON, os.pathsep)}
# Which kinds a click can allow, and where that is remembered.
BY_CLICK = {READ: remembered.FOLDERS, POST: remembered.HOSTS, DOWNLOAD: remembered.DOWNLOADS}
# What a want is for that reads a prompt file, a folder of pairs, or a folder of pictures.
PROMPTS, PAIRS, PICTURES, OPINIONS = "prompts", "pairs", "pictures", "opinions"
PROMPT_SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".exr", ".hdr")
HOMES = ("/home", "/Users")  # above those of other people
MOST_LISTED = 600  # characters of the folders in a refusal
MOST_PROMPT_BYTES, MOST_PICTURE_BYTES = 16 * 1024**2, 64 * 1024**2
MOST_LINES_BYTES = 256 * 1024**2  # of a plain text, or of rows in lines: other tables take many times their bytes


class NotAllowed(Expected, PermissionError, status=403):
    """A workflow names what only the user may allow; the message says what, and how."""


@dataclass(frozen=True)
class Want:
    """One thing outside of it that a workflow asks for.

    Attributes:
        kind: READ (a file or a model's folder), POST (to a host), DOWNLOAD (from the hub), RUN (a Python file).
        what: the name as the graph has it; for a host `name:port`; for a linked input, which node hands it over.
        why: what it is for.
        input, node: where the graph names it.
        linked: whether it is known only when the graph runs.
        plain: whether it can only mean something in the known folders, so that the user need not be asked.
    """

    kind: str
    what: str
    why: str
    input: str = ""
    node: str = ""
    linked: bool = False
    plain: bool = False


# --- the policy -----------------------------------------------------------------------------------------------------


def allowed(want: Want) -> bool:
    """Whether the workflow may have it; False also if it is known only when the graph runs."""
    return not want.linked and _RULES[want.kind](want)


def check(want: Want) -> None:
    """Raises NotAllowed, with what and the fix, unless the workflow may have it."""
    if not allowed(want):
        raise _refusal(want)


def _refusal(want: Want) -> NotAllowed:
    readable = f". They may read {shortened(', '.join(folders(want.why)), MOST_LISTED)}" if want.kind == READ else ""
    return NotAllowed(f"{shown(want.what)} ({want.why}) {_WRONG[want.kind]}. Fix: {fix(want)}{readable}")


def in_words(want: Want) -> str:
    """The want in words, as `post pictures and prompts to score.example.org:443`."""
    # What a terminal would take for more than letters is quoted.
    what = want.what[:SHOWN] or "a file" if want.what.isprintable() else shown(want.what)
    if want.kind == POST:
        return f"post {want.why} to {what}"
    return f"{want.kind} {what} ({want.why})"


def fix(want: Want) -> str:
    """How the user allows it."""
    what = want.what if len(want.what) <= SHOWN else "IT"
    if want.kind == RUN:
        return (
            f"read the file; if you trust it, start ComfyUI or otca with {PYTHON} set to its folder, or otca with "
            "--allow-python FOLDER"
        )
    if want.kind == READ:
        variable, option = FOLDERS, "--allow-folder"
        what, advice = remembers(want) or "FOLDER", "put it into a folder that workflows may read, or allow its folder"
    elif want.kind == POST:
        variable, option, advice = HOSTS, "--allow-host", "if you trust that host, allow it"
    else:
        variable, option, advice = DOWNLOADS, "--download", "if you want that, allow it"
    flag = option if want.kind == DOWNLOAD else f"{option} {what}"
    click = " by a click on the page (OTCA: Permissions)," if remembers(want) and remembered.file() else ""
    return f"{advice}:{click} by otca's {flag}, or by {variable}={what} where ComfyUI or otca is started"


def folders(why: str) -> list[str]:
    """All folders, absolute, whose files or models a workflow may name for this purpose; and single files that the user named."""
    return [*known_folders(why), *map(_absolute, _by_user(READ))]


def known_folders(why: str) -> list[str]:
    """Folders that need no permission, the one where a command was typed among them. For prompts, pairs and pictures they are
    few: the hub's cache and the models' folders hold what others wrote, and what the user never meant to show."""
    of_purpose = dict.fromkeys((PROMPTS, PAIRS, OPINIONS), paths.input_folders) | {PICTURES: paths.picture_folders}
    readable = of_purpose.get(why, _model_folders)()
    if not comfyui.in_comfyui() and not environment.has(FROM_PAGE) and not too_wide(os.getcwd()):
        readable.append(Path.cwd())
    return list(dict.fromkeys(_absolute(str(folder)) for folder in readable))


def _model_folders() -> list[Path]:
    """ComfyUI's and the pack's own, runs, and the hub's cache."""
    from huggingface_hub import constants

    listed = [*paths.model_folders(), paths.runs_folder(), Path(constants.HF_HUB_CACHE)]
    listed += [folder for kind in paths.WEIGHT_KINDS for folder in paths.weight_folders(kind)]
    output = paths.output()
    return listed if output is None else [*listed, output]


def too_wide(folder: str) -> bool:
    """Whether a folder is the root of a disk, a home folder or above it, or the system's own: too much to allow in passing."""
    home = os.path.expanduser("~")
    systems = any(opening.inside(folder, system) for system in ("/proc", "/sys", "/dev", "/etc"))
    whole = os.path.dirname(folder) == folder or os.path.ismount(folder)
    return whole or opening.inside(home, folder) or folder in HOMES or systems


def _may_read(want: Want) -> bool:
    try:
        return bool(candidates(want.what, [Path(folder) for folder in known_folders(want.why)], want.why))
    except NotAllowed:
        return False


def _may_post(want: Want) -> bool:
    what = want.what
    name = what.rpartition(":")[0]
    entries = set(map(str.lower, _by_user(POST)))
    # ComfyUI's own server does what it is asked to, and a graph would ask in the user's name.
    near = is_loopback(name) and what.rpartition(":")[2] != str(comfyui.port())
    return bool(entries & {what, name, name.strip("[]")}) or near or what == wandb_host(named_only=True)


def _may_download(want: Want) -> bool:
    return not {"1", want.what}.isdisjoint(_by_user(DOWNLOAD))


def _may_run(want: Want) -> bool:
    try:
        python_file(want.what)
    except (NotAllowed, FileNotFoundError):
        return False
    return True


_RULES: dict[str, Callable[[Want], bool]] = {READ: _may_read, POST: _may_post, DOWNLOAD: _may_download, RUN: _may_run}
_WRONG = {
    READ: "lies in no folder that workflows may read",
    POST: "is a host that you have not allowed",
    DOWNLOAD: "may not be downloaded",
    RUN: "is Python code, which would run with all your rights, and no folder is allowed",
}


# --- files ----------------------------------------------------------------------------------------------------------


def candidates(name: str, among: Iterable[Path], why: str) -> list[Path]:
    """The paths that a name may mean: the name itself, or one in a folder of `among`. Only those that may be read.

    Nothing is touched, and no link followed: links inside those folders are the user's.

    Raises:
        NotAllowed: a path that may not be read, or a name that must not even be looked for.
    """
    readable = folders(why)
    readable += [real for folder in readable if (real := os.path.realpath(folder)) != folder]
    path = os.path.expanduser(name) if isinstance(name, str) else name
    try:
        opening.check_name(path)
    except ValueError as error:
        if not (
            isinstance(path, str) and opening.remote(path) and any(opening.inside(path, root) for root in readable)
        ):
            raise NotAllowed(
                f"{shown(name)} ({why}) is not looked for: {error}. Fix: name a file of this machine"
            ) from None
    places = [_absolute(path)]
    for folder in among:
        below = _absolute(os.path.join(folder, path))
        places += [below] if opening.inside(below, _absolute(str(folder))) else []
    allowed_paths = [
        Path(root) for root in dict.fromkeys(places) if any(opening.inside(root, folder) for folder in readable)
    ]
    if not allowed_paths and not is_plain(path):
        raise _refusal(Want(READ, name, why))
    return allowed_paths


def is_plain(name: str) -> bool:
    """Whether a name can only mean something in the known folders: it is not a whole path, names no drive of Windows (on every
    system, so that a graph has one meaning), and does not lead upwards."""
    up = os.pardir in re.split(r"[/\\]", name)
    return not (os.path.isabs(name) or ntpath.splitdrive(name)[0] or name[:1] in ("~", "/", "\\") or up)


def open_prompts(name: str, picture: bool = False) -> tuple[Path, int]:
    """The path and a descriptor, which the caller closes, of a prompt file or a prompt's picture: see `opening.opened`.

    Raises:
        NotAllowed: it may not be read, also where a link leads out of the folders.
        FileNotFoundError: it does not exist.
        ValueError: another kind of file, or too large.
        OSError: it cannot be read.
    """
    text = MOST_LINES_BYTES if str(name).lower().endswith((".txt", ".jsonl")) else MOST_PROMPT_BYTES
    suffixes, most = (PICTURE_SUFFIXES, MOST_PICTURE_BYTES) if picture else (PROMPT_SUFFIXES, text)
    why, among = PROMPTS, paths.input_folders()
    candidate_paths, readable = candidates(name, among, why), folders(why)
    # A single file that the user named himself may be called as he likes.
    if not str(name).lower().endswith(suffixes) and not any(str(path) in readable for path in candidate_paths):
        raise ValueError(f"{shown(name)} ({why}) is not {' or '.join(suffixes)}. Fix: rename the file")
    for path in candidate_paths:
        try:
            return path, opening.opened(path, readable, most)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except opening.Refused as refusal:
            kind = NotAllowed if isinstance(refusal, opening.LeadsOut) else ValueError
            fix = "split it" if isinstance(refusal, opening.TooLarge) else f"put a plain {path.suffix} file there"
            raise kind(f"{path} ({why}) {refusal}. Fix: {fix}") from None
    listed = ", ".join(map(str, among))
    raise FileNotFoundError(f"file {shown(name)} was not found, neither as a path nor in {listed}")


def python_file(name: str) -> Path:
    """A .py file that may be run as a reward: a path, or a name in a folder of $OTCA_ALLOW_PYTHON_REWARDS; links followed.

    Raises:
        NotAllowed: no folder is allowed, or the file lies outside all of them.
        FileNotFoundError: no such folder has it.
    """
    want = Want(RUN, str(name), "a reward")
    allowed_folders = [os.path.realpath(folder) for folder in _by_environment(RUN)]
    if not allowed_folders:
        raise NotAllowed(f"{shown(name)} {_WRONG[RUN]}. Fix: {fix(want)}")
    listed = ", ".join(allowed_folders)
    try:
        opening.check_name(name)
    except ValueError as error:
        raise NotAllowed(f"{shown(name)} is not looked for: {error}. Fix: name a file in {listed}") from None
    for folder in allowed_folders:
        real = os.path.realpath(os.path.join(folder, os.path.expanduser(name)))  # an absolute path stays what it is
        if not os.path.isfile(real):
            continue
        if real.endswith(".py") and any(opening.inside(real, place) for place in allowed_folders):
            return Path(real)
        raise NotAllowed(
            f"{shown(name)} is {real}, no .py file in {listed}. Fix: put it there, or allow its folder too"
        )
    raise FileNotFoundError(
        f"{shown(name)} was not found in {listed}. Fix: put the file into a folder of {PYTHON}, or correct the name"
    )


def python_allowed() -> bool:
    """Whether the user has allowed a folder whose files may be run as rewards."""
    return bool(_by_environment(RUN))


@place("word", "your word that the page may start trainings", "that word")
def _word_of(folder_paths: ModuleType | None) -> Path | None:
    return Path(folder_paths.get_user_directory()) / TRAININGS_FILE if folder_paths else None


@place("settings", "ComfyUI's settings, with those of the pack as OTCA.…", "all of them", ours=False, written=False)
def _settings_of(folder_paths: ModuleType | None) -> Path | None:
    return Path(folder_paths.get_user_directory()) / "default" / "comfy.settings.json" if folder_paths else None


def trainings_allowed(user_folder: Path) -> bool:
    """Whether the user has said, before ComfyUI started, that its page may start and stop processes."""
    return environment.read(TRAININGS).strip() == "1" or (user_folder / TRAININGS_FILE).is_file()


# --- tokens ---------------------------------------------------------------------------------------------------------


def check_token(variable: str, url: str) -> None:
    """Raises NotAllowed unless the user has said, by <variable>_HOST, that this token is for the host of `url`."""
    host, setting = host_of(url), f"{variable}_HOST"
    wanted = environment.read(setting).strip().lower()
    if wanted not in (host, host.rpartition(":")[0]):
        purpose = f"is for {wanted}" if wanted else "is for no host that is known"
        raise NotAllowed(
            f"the token in {variable} {purpose}, and the workflow would send it to {host}. Fix: if you trust {host} with "
            f"it, set {setting}={host} where ComfyUI or otca is started; else leave token_variable empty"
        )


# --- what the user says ---------------------------------------------------------------------------------------------


def user_named(path: str | os.PathLike) -> None:
    """Allows reading what the user typed on a command line, if it exists. Sets the environment, so that child processes may
    read it too."""
    name = os.path.expanduser(os.fspath(path))
    if name and os.pathsep not in name and os.path.exists(name) and os.path.dirname(_absolute(name)) != _absolute(name):
        _add(READ, _absolute(name))


def user_wants(wants: Iterable[Want]) -> None:
    """Allows what the user asked for directly; never Python code."""
    for want in wants:
        if want.kind == READ:
            user_named(want.what)
        elif want.kind != RUN:
            _add(want.kind, want.what)


def user_allows(
    folders: Iterable[str] = (), hosts: Iterable[str] = (), python: Iterable[str] = (), download: bool = False
) -> None:
    """The options of a command line, into the environment. `download` also asks for what is missing, as Load Flow Model does."""
    _asked["download"] = download
    for kind, values in ((READ, folders), (POST, hosts), (RUN, python), (DOWNLOAD, ["1"] if download else [])):
        for value in values:
            _add(kind, str(value))


_asked = {"download": False}


def downloads_wanted() -> bool:
    """Whether the user asked that missing models be fetched, whatever the workflow's own switch says."""
    return _asked["download"]


def granted() -> dict[str, str]:
    """The permissions of the user's environment and command line, for another process of the same training."""
    return {variable: environment.read(variable) for variable, _ in _VARIABLES.values()}


def grant(allowed: Mapping[str, str]) -> None:
    """Allows what `granted` says."""
    for variable, value in allowed.items():
        environment.write(variable, value)


def remembers(want: Want) -> str | None:
    """The entry that a click would remember for this want: the folder, host or repository; None where a click cannot allow it."""
    if want.linked or want.kind not in BY_CLICK:
        return None
    if want.kind != READ:
        return want.what
    name = os.path.expanduser(want.what)
    if opening.remote(name) or not os.path.isabs(name):
        return None
    path = _absolute(name)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return None if too_wide(folder) else folder


def remember(kind: str, what: str) -> str:
    """Remembers that workflows may have this from now on; returns it as it is remembered.

    Raises:
        ValueError: a kind or value that no click can allow, with the fix.
        OSError: the file cannot be written.
    """
    if kind not in BY_CLICK:
        raise ValueError(f"must be one of {', '.join(BY_CLICK)}. Fix: Python code is allowed by {PYTHON} alone")
    if kind == DOWNLOAD and not is_hub_id(what):
        raise ValueError("is not a repository of the hub. Fix: for example black-forest-labs/FLUX.1-dev")
    value = what if kind == DOWNLOAD else _checked_host(what) if kind == POST else _checked_folder(what)
    remembered.add(BY_CLICK[kind], value)
    return value


def _checked_folder(what: str) -> str:
    try:
        opening.check_name(what)
    except ValueError as error:
        raise ValueError(f"{error}. Fix: give a folder of this machine, or use {FOLDERS}") from None
    if not os.path.isabs(what) or not os.path.isdir(what):
        raise ValueError("is not the absolute path of a folder that is there. Fix: give one")
    real = os.path.realpath(what)
    if too_wide(real) or too_wide(_absolute(what)):
        raise ValueError(
            "is the root of a disk, or the home folder or above it. Fix: give a folder with fewer files in it"
        )
    return _absolute(what)


def _checked_host(what: str) -> str:
    match = HOST.fullmatch(what.lower()) if isinstance(what, str) else None
    if not match or not 0 < int(match["port"] or 0) < 65536:
        raise ValueError("is not a host with its port. Fix: for example score.example.org:443")
    return f"{match['name']}:{int(match['port'])}"


@dataclass(frozen=True)
class Given:
    """Something that workflows may have because the user said so; `by`: the variable that says it, "" for a click."""

    kind: str
    what: str
    by: str


def given() -> list[Given]:
    """The user's permissions so far: by clicks, then by the environment."""
    clicked = remembered.entries()
    return [
        *(Given(kind, what, "") for kind, name in BY_CLICK.items() for what in clicked[name]),
        *(Given(kind, what, name) for kind, (name, _) in _VARIABLES.items() for what in _by_environment(kind)),
    ]


def take_back(kind: str, what: str) -> None:
    """Forgets what a click allowed, if one did.

    Raises:
        ValueError: a kind that no click allows.
        Damaged, OSError: the file cannot be read or written.
    """
    if kind not in BY_CLICK:
        raise ValueError(f"must be one of {', '.join(BY_CLICK)}. Fix: what a variable allows is taken back there")
    remembered.remove(BY_CLICK[kind], what)


# --- small parts ------------------------------------------------------------------------------------------------------


def _by_environment(kind: str) -> list[str]:
    variable, separator = _VARIABLES[kind]
    return [part.strip() for part in environment.read(variable).split(separator) if part.strip()]


def _by_user(kind: str) -> list[str]:
    """The permissions of the environment and of clicks."""
    return [*_by_environment(kind), *remembered.entries()[BY_CLICK[kind]]]


def _add(kind: str, value: str) -> None:
    variable, separator = _VARIABLES[kind]
    environment.write(variable, separator.join(dict.fromkeys([*_by_environment(kind), value])))


def _absolute(path: str) -> str:
    """The absolute path without `..`; links are not followed."""
    return os.path.abspath(os.path.expanduser(path))
