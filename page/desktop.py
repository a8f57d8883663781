"""What the desktop of this machine offers for a folder: its trash, and its window of files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from ..host.files import present

TRASH_SECONDS = 120  # a trash on another disk takes a copy
MAC_TRASH, MAC_OPEN = "/usr/bin/trash", "/usr/bin/open"


def trash_command() -> list[str] | None:
    """The system's own command that moves what it is given into the trash; None where there is none."""
    if sys.platform == "darwin":
        return [MAC_TRASH] if os.access(MAC_TRASH, os.X_OK) else None
    gio = shutil.which("gio") if sys.platform.startswith("linux") else None
    return [gio, "trash"] if gio else None


def move_to_trash(path: Path) -> None:
    """Raises OSError, with what the system says, where it cannot; then the folder is where it was."""
    command = trash_command()
    if command is None:
        raise OSError("this system offers none")
    try:
        ran = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=TRASH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} took more than {TRASH_SECONDS} s") from error
    if ran.returncode or present(path):
        raise OSError(" ".join(ran.stderr.split()) or f"{command[0]} ended with exit code {ran.returncode}")


def can_open() -> bool:
    """Whether `open_folder` has something to open it with: a machine without a screen has nothing."""
    return sys.platform == "win32" or _opener() is not None


def _opener() -> list[str] | None:
    if sys.platform == "darwin":
        return [MAC_OPEN, "-R"]  # shows it in its parent: a folder called x.app would be started
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    found = shutil.which("xdg-open") if has_screen else None
    return [found] if found else None


def open_folder(path: Path) -> None:
    """Shows a folder in the desktop's window of files, without waiting for it."""
    if sys.platform == "win32":
        os.startfile(path, "explore")
        return
    command = _opener()
    if command is None:
        raise OSError("this machine has no screen, or nothing that opens folders")
    process = subprocess.Popen(
        [*command, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()  # else it would stay as a zombie
