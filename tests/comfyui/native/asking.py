"""The program of `inside.py` as a process that can be asked, one for each ComfyUI."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from comfyui_otca.tests.comfyui.server import ComfyUI, Installation


class Inside:
    """ComfyUI's interpreter with our program; every answer is kept."""

    def __init__(self, installation: Installation, log: Path):
        self.installation, self._log = installation, log
        self._known: dict[str, dict] = {}
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [installation.python, Path(__file__).with_name("inside.py")],
                cwd=installation.folder,
                env=ComfyUI.environment() | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, question: str, family: str = "", **options) -> dict:
        """What the program answers; an error of the program is one here."""
        line = json.dumps([question, family, options])
        if line not in self._known:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, self._log.read_text()[-4000:]
            self._known[line] = json.loads(answer)
        found = self._known[line]
        assert "error" not in found, f"{question} of {family}: {found.get('error')}\n{found.get('trace')}"
        return found

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)
