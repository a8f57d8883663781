"""Stage 6, after the update: the run's record, and what comes out."""

import contextlib
import itertools
import logging
import weakref

from .. import canvas
from ..canvas import results
from ..host import comfyui, devices, paths, stopping
from ..host.access.permissions import Want
from ..host.access.wants import ACCOUNT, PROMPT_LINES, SECRET, Naming, figures_go_out
from ..host.text import plain_name
from ..trainer.types import ARTEFACTS, RunSettings
from .inputs import Node, choice, complaint, dtype, integer, lines, number, socket, text
from .training import TRAIN

logger = logging.getLogger(__name__)

UNRECORDED = "Nothing is recorded: no update gives a report."


class TrainingRun(Node):
    TITLE = "Training Run"
    CATEGORY = "OTCA/training"
    DESCRIPTION = "Keeps the run's folder: metrics, curves, heatmaps, evaluations, checkpoints and the adapter."
    SEARCH_ALIASES = [*TRAIN, "trainer", "checkpoint", "log", "curves", "evaluate", "wandb", "iterations", "epochs"]
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("curves",)
    OUTPUT_TOOLTIPS = ("The reward curves so far, as a picture.",)
    FUNCTION = "record"
    OUTPUT_NODE = True

    REQUIRED = {
        "model": socket("OTCA_MODEL"),
        "run_name": text("otca", suggest="runs", hint="my_run").tip("Name of the run's folder."),
        "iterations": integer(300, 1, 10**7, label="headless iterations").tip(
            "Length of a headless training, in iterations. On the canvas the number beside Run says how many."
        ),
        "checkpoint_every": integer(RunSettings.checkpoint_every, 1, 10**6).tip("Iterations between checkpoints."),
        "evaluate_every": integer(RunSettings.evaluate_every, 0, 10**6).tip(
            "Iterations between evaluations, and between new plots. 0: no evaluation."
        ),
        "evaluation_prompts": lines(
            RunSettings.evaluation_prompts,
            hint="Evaluation prompts, one per line; empty: the first iteration's",
            advanced=True,
            names=Naming(PROMPT_LINES, asks="never"),
        ).tip("Prompts of evaluations, one per line. Empty: the first iteration's."),
        "evaluation_seeds": integer(RunSettings.evaluation_seeds, 1, 1024, label="seeds per prompt", advanced=True).tip(
            "Number of fixed seeds to each evaluation prompt."
        ),
    }
    OPTIONAL = {
        "report": socket("OTCA_REPORT"),  # without it, as below a bypassed update, nothing is recorded
        "evaluation_steps": integer(RunSettings.evaluation_steps, 0, 1000, advanced=True).tip(
            "Denoising steps of evaluations. 0: as many as the sampler's."
        ),
        "keep_checkpoints": integer(RunSettings.keep_checkpoints, 1, 1000, advanced=True).tip(
            "Number of last checkpoints that are kept. Older ones are deleted."
        ),
        "best_metric": text(
            RunSettings.best_metric, suggest="metrics", label="keep best by", hint="evaluation/sum", advanced=True
        ).tip(
            "Metric by which the best evaluation's adapter is kept in best/: evaluation/sum, or evaluation/ and a "
            "reward's name. Empty: each held-out reward, if a decline or artefacts may stop the run."
        ),
        "stop_after_decline": integer(3, 0, 1000, label="stop after declines", advanced=True).tip(
            "Ends the run, with its best adapter, when a held-out reward has declined for so many evaluations in a row. "
            "0: never."
        ),
        "wandb_project": text(RunSettings.wandb_project, label="W&B project", hint="none", advanced=True).tip(
            "Weights & Biases project that all metrics are sent to as well; needs pip install wandb. Empty: none."
        ),
        "artefacts": choice(ARTEFACTS, RunSettings.artefacts, advanced=True).tip(
            "Compares each evaluation's pictures with the untrained model's: noise, clipped colours, grids. stop: ends the "
            "run, with its best adapter."
        ),
        "evaluation_width": integer(RunSettings.evaluation_width, 0, 8192, step=8, advanced=True).tip(
            "Width of evaluations, in pixels. 0: the sampler's."
        ),
        "evaluation_height": integer(RunSettings.evaluation_height, 0, 8192, step=8, advanced=True).tip(
            "Height of evaluations, in pixels. 0: the sampler's."
        ),
        "evaluation_guidance": number(RunSettings.evaluation_guidance, 0, 100, step=0.1, advanced=True).tip(
            "Guidance scale of evaluations. 0: the sampler's."
        ),
        "evaluation_frames": integer(RunSettings.evaluation_frames, 0, 10001, advanced=True).tip(
            "Frames of evaluations' videos, 4·k + 1. 0: the sampler's."
        ),
    }
    HIDDEN = {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO", "node_id": "UNIQUE_ID"}

    @classmethod
    def VALIDATE_INPUTS(cls, run_name=None, wandb_project="", evaluation_prompts=None):
        from ..host.access.permissions import check
        from ..trainer import prompts

        def may_send(project):
            for want in figures_go_out(project):
                check(want)

        lack = cls.lacks(wandb_project=wandb_project)
        return (
            complaint("wandb_project", may_send, wandb_project)
            or (lack and "{}: {}".format(*lack))
            or complaint("evaluation_prompts", prompts.lines, evaluation_prompts or "")
            or _plain_name("run_name", run_name)
        )

    @classmethod
    def needs(cls, wandb_project="", **_):
        return {"wandb_project": ("wandb",)} if wandb_project else {}

    @classmethod
    def WANTS(cls, wandb_project="", **inputs):
        account = [Want(SECRET, "WANDB_API_KEY", ACCOUNT, "wandb_project", plain=True)] if wandb_project else []
        return [*super().WANTS(**inputs), *figures_go_out(wandb_project), *account]

    @devices.outside_inference
    def record(self, model, run_name, iterations, report=None, prompt=None, extra_pnginfo=None, node_id="", **settings):
        from ..canvas import ownership
        from ..trainer.pictures import grids
        from ..trainer.policy import lora
        from ..trainer.run import record

        prompt = prompt or {}
        if report is None:
            return results.shown(node_id, (results.picture(lambda: grids.note(UNRECORDED)),), {})
        if not canvas.here():
            run = record.run_of(model) or record.begin(model, paths.run_folder(run_name), prompt)
            run.settings = RunSettings(**settings)
            # No stop amid an evaluation: it would be missing from the resumed run.
            with stopping.finishing():
                run.record(model, report, last=iterations)
            return (None,)  # nobody looks at pictures here: the folder has them
        run = ownership.check(model, prompt, node_id)
        assert run is not None  # this node is its Training Run
        run.settings = RunSettings(**settings)
        run.follow(prompt, comfyui.canvas_of(extra_pnginfo), report)
        results.makes_run(node_id, run.folder.name)
        with _marked(run, iterations, node_id):
            run.record(model, report, last=iterations, progress=stopping.progress)
            # After a brake: ComfyUI may have run Save LoRA before this, and so before the model went back to its best.
            for name, how in _copies.pop(run, {}).items() if run.brake() else ():
                lora.save_named(model, paths.lora_folder(), name, *how)
            stopping.check_stop()  # one that came amid the update: the iteration is on record now
        results.shows_owner(prompt, node_id, ownership.standing(model))
        payload = {"node": node_id, "run": run.folder.name, "iteration": run.iteration, "changes": run.changes}
        payload["brake"] = run.reason
        return results.shown(node_id, (results.picture(run.curves),), {"run": lambda: payload})


@contextlib.contextmanager
def _marked(run, iterations, node):
    """Says in the run's folder how it stands: between two prompts nothing is at work that could be interrupted."""
    run.mark("running", iterations)
    try:
        yield
    except stopping.interrupts():
        run.mark("idle", iterations)
        raise
    except Exception as error:
        run.mark("failed", iterations, str(error), node=node)
        raise
    ended = run.iteration >= iterations or run.brake() is not None
    run.mark("finished" if ended else "idle", iterations, reason=run.reason)


class SaveLoRA(Node):
    TITLE = "Save LoRA"
    CATEGORY = "OTCA/training"
    DESCRIPTION = "Writes the adapter as a .safetensors file that ComfyUI's LoraLoader and diffusers read."
    SEARCH_ALIASES = ["save lora", "export lora", "safetensors", "lora", "train lora"]
    RETURN_TYPES = ()
    FUNCTION = "save"
    OUTPUT_NODE = True
    RUN_AT_END = True  # headlessly once, when training is done; a stopped run has its lora.safetensors

    REQUIRED = {
        "model": socket("OTCA_MODEL"),
        "filename": text("otca_lora", hint="my_lora").tip("Name of the file, without .safetensors."),
    }
    OPTIONAL = {
        "dtype": dtype(advanced=True).tip(
            "Precision of the file. auto: what the network computes in, as the run's own."
        )
    }
    HIDDEN = {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO", "node_id": "UNIQUE_ID"}

    @classmethod
    def VALIDATE_INPUTS(cls, filename=None):
        return _plain_name("filename", filename)

    @devices.outside_inference
    def save(self, model, filename, dtype="auto", prompt=None, extra_pnginfo=None, node_id=""):
        from ..canvas import ownership
        from ..host import distributed
        from ..trainer.families.loading import DTYPES
        from ..trainer.policy import lora

        if not distributed.is_main():
            return ()
        if not (model.policy.is_adapted or canvas.here()):  # which would be found out after a long training
            message = (
                "%s writes nothing, since all weights were trained without an adapter. otca export RUN writes the model"
            )
            logger.warning(message, self.TITLE)
            return ()
        # A graph that does not record what it trains must not write over what is on record.
        run = ownership.recorder(model, prompt or {}, node_id)
        identity = run.identity() if run is not None else {}
        metadata = lora.workflow_metadata(prompt or {}, comfyui.canvas_of(extra_pnginfo)) | identity
        name = _free_name(model, run, filename)
        files = lora.save_named(model, paths.lora_folder(), name, metadata, DTYPES.get(dtype))
        if run is None:
            _saved_outside.setdefault(model, set()).update(files)
        else:
            _copies.setdefault(run, {})[name] = metadata, DTYPES.get(dtype)
        shown = {"text": [str(path) for path in files]}
        if name != filename:
            # For the person who would load the other one
            why = "no Training Run records this model" if run is None else f"it is not of run {run.folder.name}"
            fix = "record it by a Training Run" if run is None else "give another filename"
            shown["otca_elsewhere"] = [
                f"{filename} stays as it is, since {why}; {name} was written. Fix: {fix}, or move that file elsewhere"
            ]
        return {"ui": shown, "result": ()}


_copies = weakref.WeakKeyDictionary()  # run: {name of a file that Save LoRA wrote of it: its metadata and precision}


_saved_outside = weakref.WeakKeyDictionary()  # model: the files that it wrote while it belonged to no run


def _free_name(model, run, filename):
    """A name for the file: a run overwrites its own, as at every iteration on the canvas, and never another's."""
    for name in _names(filename, run):
        if not (foreign := _foreign_files(model, run, name)):
            return name
        if not canvas.here():  # headlessly a file has exactly the name of the input, or is not written
            raise ValueError(
                f"filename = {filename!r}: {foreign[0]} is there, and is not of this run; the run's own adapter is saved "
                "beside it. Fix: give another filename, or move that file elsewhere"
            )
    raise AssertionError("there is always another number")


def _names(filename, run):
    """The names that a file may have: as the input says; then with the name of the run that it belongs to; then by numbers."""
    yield filename
    if run is not None:
        own = run.folder.name
        filename = own if own.startswith(f"{filename}-") else f"{filename}-{own}"
        yield filename
    yield from (f"{filename}-{number}" for number in itertools.count(2))


def _foreign_files(model, run, name):
    """Files of that name that are there, and hold neither what this run nor what this model outside of any run saved."""
    from ..trainer.policy import lora
    from ..trainer.run.checkpoint import wrote

    files = lora.files(model, paths.lora_folder() / f"{name}.safetensors").values()
    saved = _saved_outside.get(model, ())
    is_own = (lambda file: file in saved) if run is None else (lambda file: wrote(run.folder, run.id, file))
    return [file for file in files if file.exists() and not is_own(file)]


def _plain_name(name, value):
    """True for a name that stays in its folder (and for a linked input, which is None here), else what is wrong."""
    try:
        return True if value is None else bool(plain_name(value))
    except ValueError as error:
        return f"{name} = {value!r} {error}"
