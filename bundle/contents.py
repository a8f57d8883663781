"""The contents of a bundle: the part of a graph that trains, by the names that its files have there, and these files.

What an input names is known by its node's WANTS, so that a new node needs nothing here. A path of this machine that is left in
the graph is refused, and so is what looks like a key: a bundle is made to be copied elsewhere.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..host import paths
from ..host.access import opening, permissions, wants
from ..host.access.permissions import OPINIONS, PICTURES, POST, PROMPTS, READ, RUN, Want
from ..host.errors import parts
from ..host.text import plain_name
from ..trainer.opinions import kinds, plan, reading, votes
from ..trainer.policy.files import ADAPTER as RUNS_ADAPTER
from ..trainer.policy.files import PEFT, all_of, find
from ..trainer.prompts import FILE, IMAGE, IMAGES, as_line, as_row, files_in, lines, picture_names, read_source
from ..trainer.rewards import hps
from ..trainer.types import RUN_NODE, Prompt, metadata_of
from ..trainer.workflow import foreign
from ..trainer.workflow.graph import constants
from ..trainer.workflow.problem import Problem, WorkflowError
from ..trainer.workflow.running import Workflow
from . import found
from .found import MODELS, Model

INPUTS, REWARDS, LORAS, OWN_MODELS, OF_VOTES = "inputs", "rewards", "loras", "models", "votes"
HERE, ELSEWHERE = " [input]", (" [output]", " [temp]")  # behind a name in ComfyUI: in which of its folders
KEY = re.compile(r"api[-_ ]?key|secret|passw|authorization|bearer|(access|auth)[-_ ]?token", re.IGNORECASE)

Source = Path | bytes
Inputs = dict[str, Any]  # of a node, which are changed in place


@dataclass
class Contents:
    """The contents of one bundle.

    Attributes:
        graph: in API form, as it is written.
        run_name: a plain name.
        copied: {path in the bundle: what is written there}.
        models: what is expected there.
        hosts: `name:port` that it sends to, which were allowed here.
        variables: environment variables that hold what is secret: their names alone.
        comfyui: what ComfyUI has to bring; None if the graph does without it.
        notes: what a person should know, a sentence each.
        pictures: paths here of the user's own pictures that are copied, which a person has to agree to.
    """

    graph: dict[str, dict]
    run_name: str
    copied: dict[str, Source] = field(default_factory=dict)
    models: list[Model] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    comfyui: foreign.Needs | None = None
    notes: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)


def collect(workflow: Workflow, run_name: str | None = None) -> Contents:
    """Collects the contents of a bundle of this workflow. It has to be one that validates (`begun_from_runs` comes before).

    `run_name`: instead of the graph's own.

    Raises:
        WorkflowError: names the node and the input that keep it from being bundled.
        ValueError: the run's name is not a plain one.
        NotAllowed: a file that workflows may not read, or that may not be run.
    """
    graph = {node_id: workflow.graph[node_id] for node_id in workflow.needed()}
    (run,) = [entry["inputs"] for entry in graph.values() if entry["class_type"] == RUN_NODE]
    try:
        run["run_name"] = plain_name(run_name or run.get("run_name"))
    except ValueError as error:
        raise ValueError(f"run_name = {run_name or run.get('run_name')!r} {error}") from error
    comfyui = foreign.needs(graph, workflow.node_classes)
    collector = Collector(workflow, Contents(graph, run["run_name"], comfyui=comfyui))
    for node_id in graph:
        collector.take(node_id)
    collector.finish()
    if collector.problems:
        raise WorkflowError(collector.problems)
    return collector.contents


def begun_from_runs(workflow: Workflow) -> Workflow:
    """The same workflow, with the adapter of a run to start from in place of `resume_run`, which only the canvas knows.

    Raises:
        WorkflowError: that run is not here, or it has saved no adapter.
    """
    graph = copy.deepcopy(workflow.graph)
    for want in wants.named(graph, workflow.node_classes):
        if want.why != wants.RUN_BEFORE or want.linked:
            continue
        try:
            adapter = find(str(paths.runs_folder().resolve() / plain_name(want.what)))
        except (OSError, ValueError) as error:
            fix = f"leave {want.input} empty, or say by OTCA_RUNS which folder holds that run"
            raise WorkflowError([workflow.problem(want.node, want.input, want.what, str(error), fix)]) from error
        graph[want.node]["inputs"] |= {want.input: "", "start_from": str(adapter)}
    return Workflow(graph, workflow.node_classes, workflow.display_names, workflow.addresses)


class Collector:
    """Goes through the nodes, renames what they name, and notes what is copied and expected."""

    def __init__(self, workflow: Workflow, contents: Contents):
        self.workflow, self.contents = workflow, contents
        self.problems: list[Problem] = []
        self._named: dict[tuple[str, Path], str] = {}  # (folder in the bundle or MODELS, path here): its name there

    def take(self, node_id: str) -> None:
        entry, declared = self.contents.graph[node_id], self.workflow.nodes[node_id].declared
        inputs, refused = entry["inputs"], set()
        for want in wants.of_node(self.workflow.node_class(node_id), inputs):
            bundled = OF_FILES.get(want.why) if want.kind == READ else OF_KINDS.get(want.kind)
            if want.linked or bundled is None:
                continue
            try:
                bundled(self, want, inputs)
            except (OSError, ValueError, opening.Refused) as error:
                message, fix = parts(error)
                value = None if want.kind in (POST, wants.SECRET) else inputs.get(want.input)  # which may hold a key
                self._refuse(node_id, want.input, value, message, fix or "name a file that can be read")
                refused.add(want.input)
        for name, value in constants(entry).items():
            is_prose = name in declared and bool(declared[name].options.get("multiline"))
            if name not in refused and not is_prose and _is_of_this_machine(value):
                fix = "put the file into ComfyUI's folders, and name it"
                self._refuse(node_id, name, value, "is a path of this machine", fix)

    def finish(self) -> None:
        """Completes the contents by what follows from the graph as a whole."""
        contents = self.contents
        for kind, name in contents.comfyui.files if contents.comfyui else ():
            contents.models.append(Model(name, kind, found.of_comfyui(kind, name)))
        contents.hosts = list(dict.fromkeys(contents.hosts))
        contents.notes = list(dict.fromkeys(contents.notes))
        home = str(Path.home())
        for node_id, entry in contents.graph.items():
            if len(home) > 1 and home in json.dumps(entry, ensure_ascii=False).replace("\\\\", "\\"):
                self._refuse(
                    node_id, None, None, f"holds the path of your home folder, {home}", "take it out of its texts"
                )

    # --- one input --------------------------------------------------------------------------------------------------

    def _python(self, want: Want, inputs: Inputs) -> None:
        source = permissions.python_file(want.what)  # which also says whether it may be run
        self.contents.notes.append(
            f"Reward: Python runs {REWARDS}/{source.name}. Other files that it imports, and packages, are not in this bundle."
        )
        inputs[want.input] = self._copy(source, REWARDS)

    def _prompts(self, want: Want, inputs: Inputs) -> None:
        if inputs[want.input] == want.what:  # else a line of it names the file
            inputs[want.input] = self._copy_prompts(want.what)

    def _copy_prompts(self, name: str) -> str:
        """Copies prompts, with the pictures that they work on, and returns their name in the bundle."""
        path, prompts = read_source(name)
        if own := _name_in_pack(path, paths.ASSETS / "prompts"):
            return own
        if not any(map(metadata_of, prompts)) and path.suffix == ".txt":
            return self._copy(path, INPUTS)
        rows = "\n".join(as_row(self._with_pictures(prompt)) for prompt in prompts)
        return self._copy(path.with_suffix(".jsonl"), INPUTS, rows.encode())

    def _prompt_lines(self, want: Want, inputs: Inputs) -> None:
        rows = [
            json.dumps(row | {FILE: self._copy_prompts(row[FILE])}, ensure_ascii=False) for row in files_in(want.what)
        ]
        rows = rows or [as_line(self._with_pictures(prompt)) for prompt in lines(want.what)]
        inputs[want.input] = "\n".join(rows)

    def _uploaded(self, want: Want, inputs: Inputs) -> None:
        inputs[want.input] = self._copy_picture(want.what)

    def _with_pictures(self, prompt: str) -> Prompt:
        """The prompt with its pictures' names in the bundle, into which they are copied."""
        metadata = dict(metadata_of(prompt))
        names = list(map(self._copy_picture, picture_names(prompt)))
        if names:
            metadata |= {IMAGE: names[0]} if IMAGE in metadata else {IMAGES: names}
        return Prompt(prompt, metadata)

    def _copy_picture(self, name: str) -> str:
        """Copies a picture of the input folder, and returns its name in the bundle."""
        if name.endswith(ELSEWHERE):
            raise ValueError(
                "lies in a folder of ComfyUI's that is not bundled. Fix: put the picture into the input folder"
            )
        path, descriptor = permissions.open_prompts(name.removesuffix(HERE), picture=True)
        return self._copy(path, INPUTS, opening.read(descriptor, permissions.MOST_PICTURE_BYTES))

    def _pairs(self, want: Want, inputs: Inputs) -> None:
        folder = reading.read_folder(want.what)
        if own := _name_in_pack(folder.path, paths.ASSETS / "prompts"):
            inputs[want.input] = own
            return
        name = inputs[want.input] = self._name(folder.path, INPUTS)
        below = f"{INPUTS}/{name}"
        self.contents.copied[f"{below}/{reading.FILE}"] = folder.as_lines().encode()
        for pair in folder.pairs:
            for file in pair.files:
                folder.picture(pair, file)  # a link out of the folder is refused here
                self.contents.copied[f"{below}/{os.path.normpath(file)}"] = folder.path / file

    def _opinions(self, want: Want, inputs: Inputs) -> None:
        """Copies opinions and those of their pictures that can be read; those of this machine without what the tag leaves out."""
        source = plan.read_source(want.what, "" if want.what else inputs.get("tag") or "")
        if source.pairs:
            return self._pairs(want, inputs)
        if want.what and (own := _name_in_pack(Path(source.name), paths.ASSETS / "prompts")):
            inputs[want.input] = own
            return
        name = inputs[want.input] = self._name(Path(source.name) if want.what else Path("my_pictures"), INPUTS)
        rows = []
        for id_ in dict.fromkeys(id_ for opinion in source.opinions for id_ in opinion.pictures):
            picture = source.pictures.get(id_, kinds.Picture(id_))
            try:
                content = source.read(picture)
            except (OSError, ValueError, opening.Refused):
                continue  # it is gone; what is said of it is left out there, as here
            file = f"{id_}{Path(picture.path).suffix.lower()}"
            self.contents.copied[f"{INPUTS}/{name}/{file}"] = content
            self.contents.pictures.append(picture.path)
            rows.append(kinds.line(replace(picture, path=file)))
        text = "".join(f"{row}\n" for row in (*rows, *map(kinds.line, source.opinions)))
        self.contents.copied[f"{INPUTS}/{name}/{plan.FILE}"] = text.encode()
        if not want.what:
            inputs["tag"] = ""

    def _adapter(self, want: Want, inputs: Inputs) -> None:
        adapter = find(want.what)
        if adapter.name == PEFT:  # known by its folder's name, and not without the settings beside it
            name = inputs[want.input] = self._name(adapter.parent, LORAS)
            self.contents.copied |= {f"{LORAS}/{name}/{file.name}": file for file in all_of(adapter)}
            return
        # A run's adapter has the same name in every run: here it gets the run's.
        is_run = adapter.name == RUNS_ADAPTER
        name = self._name(adapter.parent / f"{adapter.parent.name}{adapter.suffix}" if is_run else adapter, LORAS)
        for file in all_of(adapter):
            ending = file.stem.removeprefix(adapter.stem)
            self.contents.copied[f"{LORAS}/{Path(name).stem}{ending}{file.suffix}"] = file
        inputs[want.input] = name

    def _taste(self, want: Want, inputs: Inputs) -> None:
        from ..trainer.networks import features
        from ..trainer.rewards.taste import Head

        path = found.model(want.what, want.why)
        if path is None:
            raise FileNotFoundError(f"{want.what} was not found")
        if not inputs.get("encoder"):  # then the file names it, by the name that it has here
            encoder = Head.load(path).encoder
            inputs["encoder"] = self._expect(encoder, features.find(encoder))
        inputs[want.input] = self._copy(path, OWN_MODELS)

    def _votes(self, want: Want, inputs: Inputs) -> None:
        name = plain_name(want.what)
        folder = paths.votes_folder() / name
        if not folder.is_dir():
            return
        for file in sorted(folder.rglob("*")):
            if file.is_symlink():
                raise ValueError(f"{file} is a link. Fix: put the file itself there, or move the link elsewhere")
            if file.is_file() and not file.name.startswith(votes.FILE):  # a stranger's database is opened by nobody
                self.contents.copied[f"{OF_VOTES}/{name}/{file.relative_to(folder).as_posix()}"] = file
        self.contents.copied[f"{OF_VOTES}/{name}/{votes.LINES}"] = votes.lines(votes.of_folder(folder)).encode()
        self.contents.notes.append(
            f"To go on with the votes of this bundle: python ComfyUI-OTCA vote --folder {OF_VOTES}/NAME, in this folder."
        )

    def _model(self, want: Want, inputs: Inputs) -> None:
        inputs[want.input] = self._expect(want.what, found.model(want.what, want.why))

    def _tokenizer(self, want: Want, inputs: Inputs) -> None:
        if not (self.contents.comfyui and hps.is_comfyuis(want.what)):  # which ComfyUI brings
            self._model(want, inputs)

    def _stays_here(self, want: Want, inputs: Inputs) -> None:
        raise ValueError(f"{want.why} is not bundled. Fix: leave out the node")

    def _expect(self, value: str, path: Path | None) -> str:
        """Notes a model, and returns its name: the graph's own, or for a path the file's or folder's."""
        if path is not None and (own := _name_in_pack(path, paths.ASSETS)):
            return own
        if permissions.is_plain(value):
            name = Path(value).as_posix()
        elif path is None:
            raise FileNotFoundError(f"{value} was not found")
        else:
            name = self._name(path, MODELS)
        expected = Model(name, MODELS, path)
        if expected not in self.contents.models:
            self.contents.models.append(expected)
        return name

    def _copy(self, source: Path, folder: str, content: bytes | None = None) -> str:
        name = self._name(source, folder)
        self.contents.copied[f"{folder}/{name}"] = source if content is None else content
        return name

    def _name(self, source: Path, folder: str) -> str:
        """A plain name that nothing else has in that folder of the bundle; two inputs that name one file share it."""
        key = folder, Path(os.path.abspath(source))
        if key not in self._named:
            stem, suffix = (source.name, "") if source.is_dir() else (source.stem, source.suffix)
            stem = re.sub(r"[^\w .+-]", "_", stem).strip(". -") or "file"
            suffix = re.sub(r"[^\w.]", "_", suffix)
            taken_names = {name.lower() for (other, _), name in self._named.items() if other == folder}
            endings = ("", *(f"_{number}" for number in range(2, len(taken_names) + 3)))
            names = (f"{stem[:80]}{ending}{suffix}" for ending in endings)
            self._named[key] = plain_name(next(name for name in names if name.lower() not in taken_names))
        return self._named[key]

    # --- what must not leave ----------------------------------------------------------------------------------------

    def _address(self, want: Want, inputs: Inputs) -> None:
        if not want.what:
            raise ValueError(
                "carries a query, which may hold a key, or is not an address. Fix: give it alone, and a token by token_variable"
            )
        if permissions.is_loopback(want.what.rpartition(":")[0]):
            self.contents.notes.append(
                f"A server has to answer at {want.what} on the machine that trains: the workflow sends {want.why} there."
            )
        else:
            self.contents.hosts.append(want.what)

    def _secret(self, want: Want, inputs: Inputs) -> None:
        """Tokens are named, and named alone; further fields of a request may hold a key."""
        if want.why == wants.FIELDS and KEY.search(want.what):
            raise ValueError("looks like it holds a key. Fix: give it by token_variable")
        if want.why != wants.FIELDS:
            self.contents.variables += [want.what, *([f"{want.what}_HOST"] if want.why == wants.TOKEN else [])]

    def _refuse(self, node_id: str, name: str | None, value: Any, message: str, fix: str) -> None:
        self.problems.append(self.workflow.problem(node_id, name, value, message, fix))


# What becomes of a file that a node names, by what it is for, and of anything else, by its kind.
OF_FILES = {
    **dict.fromkeys((wants.MODEL, wants.REWARD_MODEL, wants.ENCODER), Collector._model),
    **dict.fromkeys((wants.GUIDE, PICTURES), Collector._stays_here),
    PROMPTS: Collector._prompts,
    OPINIONS: Collector._opinions,
    wants.PROMPT_LINES: Collector._prompt_lines,
    wants.UPLOADED: Collector._uploaded,
    wants.VOTES: Collector._votes,
    wants.ADAPTER: Collector._adapter,
    wants.TASTE: Collector._taste,
    wants.TOKENIZER: Collector._tokenizer,
}
OF_KINDS = {RUN: Collector._python, POST: Collector._address, wants.SECRET: Collector._secret}


def _name_in_pack(path: Path, folder: Path) -> str | None:
    """The name in the pack of a file that comes with it; None for any other."""
    real, above = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real.relative_to(above).as_posix() if real.is_relative_to(above) else None


def _is_of_this_machine(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_of_this_machine, value.values()))
    if isinstance(value, list):
        return any(map(_is_of_this_machine, value))
    if not isinstance(value, str) or "\n" in value:
        return False
    drive = re.match(r"[A-Za-z]:[\\/]", value) is not None
    return os.path.isabs(value) or drive or value.startswith(("~", "\\")) or opening.remote(value)
