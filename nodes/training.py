"""Stage 6: the update, its record, and what comes out."""

import contextlib
import logging
import weakref

from ..host import comfyui, devices, paths, stopping
from ..host.names import plain_name
from . import live

logger = logging.getLogger(__name__)


class GRPOStep:
    TITLE = "GRPO Step"
    CATEGORY = "OTCA/training"
    DESCRIPTION = "One clipped policy-gradient update of the model, with gradients accumulated over all groups."
    RETURN_TYPES = ("OTCA_MODEL", "OTCA_REPORT")
    RETURN_NAMES = ("model", "report")
    OUTPUT_TOOLTIPS = ("The same model, one update on.", "This iteration's figures, for Training Run.")
    FUNCTION = "update"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("OTCA_MODEL",),
                "trajectories": ("OTCA_TRAJECTORIES",),
                "advantages": ("OTCA_ADVANTAGES",),
                "learning_rate": (
                    "FLOAT",
                    {
                        "default": 1e-4,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 1e-6,
                        "round": False,
                        "tooltip": "Of AdamW. LoRA: 1e-4 … 3e-4 for large models.",
                    },
                ),
                "clip_range": (
                    "FLOAT",
                    {
                        "default": 1e-4,
                        "min": 1e-7,
                        "max": 1.0,
                        "step": 1e-6,
                        "round": False,
                        "tooltip": "How far the importance ratio may move from 1. Small, since log-probs are averaged.",
                    },
                ),
                "kl_coefficient": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.001,
                        "tooltip": "Pull towards the untrained model (β).",
                    },
                ),
            },
            "optional": {
                "weight_decay": (
                    "FLOAT",
                    {
                        "default": 1e-4,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 1e-5,
                        "round": False,
                        "tooltip": "Of AdamW: pulls the adapter's weights towards zero.",
                    },
                ),
                "max_grad_norm": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 1e-6,
                        "max": 1e6,
                        "step": 0.1,
                        "tooltip": "Longer gradients are shortened.",
                    },
                ),
                "epochs": (
                    "INT",
                    {
                        "default": 1,
                        "min": 1,
                        "max": 64,
                        "tooltip": "Optimizer steps on the same samples; Stop waits for all.",
                    },
                ),
                "batch_size": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 4096,
                        "tooltip": "Samples to one forward and backward pass, of several steps where there is room; 0: all "
                        "samples of one step. Changes memory and speed only.",
                    },
                ),
                "ema_decay": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 0.99999,
                        "step": 0.001,
                        "round": False,
                        "tooltip": "Moving average of the weights, for evaluation and saving; 0: none.",
                    },
                ),
                "sampled_steps": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 1000,
                        "tooltip": "Trains only so many steps of each sample, drawn by credit; the gradient is the same on "
                        "average. 0: all.",
                    },
                ),
                "unconditional_gradient": (
                    "BOOLEAN",
                    {
                        "default": True,
                        "tooltip": "Off: the negative half of classifier-free guidance (SD3, Wan) is computed without gradient. "
                        "Saves time and memory; the gradient is another one.",
                    },
                ),
                "objective": (
                    ["clipped", "log_hinge"],
                    {
                        "default": "clipped",
                        "tooltip": "clipped: PPO's. log_hinge: PCPO's, on the logarithm of the ratio, with clip_range as its "
                        "margin.",
                    },
                ),
            },
            "hidden": {"prompt": "PROMPT", "node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def update(
        self,
        model,
        trajectories,
        advantages,
        learning_rate,
        clip_range,
        kl_coefficient,
        prompt=None,
        node_id="",
        **optional,
    ):
        from ..trainer import grpo
        from ..trainer.run import ownership
        from ..trainer.run.report import report

        if comfyui.in_comfyui() and ownership.check(model, prompt, node_id) is None:
            ownership.keep(model)
        if not trajectories.made_by(model):  # whose old policy this one never was
            raise ValueError(
                "model: it is not the one that sampled these trajectories. Fix: connect the Load Flow Model of the SDE Sampler"
            )
        devices.make_room()
        settings = grpo.UpdateSettings(
            learning_rate=learning_rate, clip_range=clip_range, kl_coefficient=kl_coefficient, **optional
        )
        trained, samples = len(trajectories.trained), len(trajectories.groups)
        at_once = bool(trajectories.kept) or not settings.batch_size  # all samples of one step
        calls = trained if at_once else -(-trained * samples // settings.batch_size)
        metrics = grpo.update(model, trajectories, advantages, settings, stopping.progress(calls))
        return model, report(metrics, trajectories, advantages)


class TrainingRun:
    TITLE = "Training Run"
    CATEGORY = "OTCA/training"
    DESCRIPTION = "Keeps the run's folder: metrics, curves, heatmaps, evaluations, checkpoints and the adapter."
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("curves",)
    OUTPUT_TOOLTIPS = ("The reward curves so far, as a picture.",)
    FUNCTION = "record"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("OTCA_MODEL",),
                "report": ("OTCA_REPORT",),
                "run_name": ("STRING", {"default": "otca", "tooltip": "Name of the run's folder."}),
                "iterations": (
                    "INT",
                    {"default": 300, "min": 1, "max": 10**7, "tooltip": "Length of a headless training."},
                ),
                "checkpoint_every": (
                    "INT",
                    {"default": 25, "min": 1, "max": 10**6, "tooltip": "Iterations between checkpoints."},
                ),
                "evaluate_every": (
                    "INT",
                    {"default": 50, "min": 1, "max": 10**6, "tooltip": "Iterations between evaluations and new plots."},
                ),
                "evaluation_prompts": (
                    "STRING",
                    {"multiline": True, "default": "", "tooltip": "One prompt a line; empty: the first iteration's."},
                ),
                "evaluation_seeds": (
                    "INT",
                    {"default": 1, "min": 1, "max": 1024, "tooltip": "Fixed seeds to each evaluation prompt."},
                ),
            },
            "optional": {
                "evaluation_steps": (
                    "INT",
                    {"default": 0, "min": 0, "max": 1000, "tooltip": "Denoising steps there; 0: the sampler's."},
                ),
                "keep_checkpoints": (
                    "INT",
                    {
                        "default": 2,
                        "min": 1,
                        "max": 1000,
                        "tooltip": "Last checkpoints that stay; older ones are deleted.",
                    },
                ),
                "best_metric": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "The best evaluation's adapter is kept in best/: evaluation/sum, or evaluation/ and a "
                        "reward's name. Empty: none is.",
                    },
                ),
                "stop_after_decline": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 1000,
                        "tooltip": "Ends a headless training when a held-out reward has declined for so many evaluations in "
                        "a row; 0: never.",
                    },
                ),
                "wandb_project": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "Sends all figures to that Weights & Biases project too, which takes pip install wandb. "
                        "Empty: none.",
                    },
                ),
            },
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO", "node_id": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, run_name, wandb_project=""):
        from ..host.access.permissions import NotAllowed, check
        from ..host.access.wants import figures_go_out

        try:
            for want in figures_go_out(wandb_project) if wandb_project is not None else ():
                check(want)
        except NotAllowed as error:
            return f"wandb_project: {error}"
        return _plain_name("run_name", run_name)

    @classmethod
    def WANTS(cls, wandb_project="", **_):
        from ..host.access.wants import figures_go_out

        return figures_go_out(wandb_project)

    @devices.outside_inference
    def record(self, model, report, run_name, iterations, prompt=None, extra_pnginfo=None, node_id="", **settings):
        from ..trainer.run import ownership
        from ..trainer.run.opening import open_run
        from ..trainer.run.settings import RunSettings

        if not comfyui.in_comfyui():
            run = open_run(paths.run_folder(run_name), RunSettings(**settings), prompt or {})
            # No stop amid an evaluation: it would be missing from the resumed run.
            with stopping.finishing():
                run.record(model, report, last=iterations)
            return (None,)  # nobody looks at pictures here: the folder has them
        run = ownership.check(model, prompt, node_id)
        run.settings = RunSettings(**settings)
        run.follow(prompt, (extra_pnginfo or {}).get("workflow"), report)
        live.makes_run(node_id, run.folder.name)
        with _marked(run, iterations):
            run.record(model, report, last=iterations, on_step=stopping.check_stop)
        live.shows_owner(prompt, node_id, f"{run.folder.name}, iteration {run.iteration}")
        payload = {"node": node_id, "run": run.folder.name, "iteration": run.iteration, "changes": run.changes}
        return live.shown(node_id, "run", (live.picture(run.curves),), lambda: payload)


@contextlib.contextmanager
def _marked(run, iterations):
    """Says in the run's folder how it stands: between two prompts nothing is at work that could be interrupted."""
    run.mark("running", iterations)
    try:
        yield
    except stopping.interrupts():
        run.mark("idle", iterations)
        raise
    except Exception as error:
        run.mark("failed", iterations, str(error))
        raise
    run.mark("finished" if run.iteration >= iterations else "idle", iterations, reason=run.early_stop())


class SaveLoRA:
    TITLE = "Save LoRA"
    CATEGORY = "OTCA/training"
    DESCRIPTION = "Writes the adapter as a .safetensors file that ComfyUI's LoraLoader and diffusers read."
    RETURN_TYPES = ()
    FUNCTION = "save"
    OUTPUT_NODE = True
    RUN_AT_END = True  # headlessly once, when training is done; a stopped run has its lora.safetensors

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("OTCA_MODEL",),
                "filename": ("STRING", {"default": "otca_lora", "tooltip": "Name of the file, without .safetensors."}),
            },
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, filename):
        return _plain_name("filename", filename)

    @devices.outside_inference
    def save(self, model, filename, prompt=None, extra_pnginfo=None):
        from ..host import distributed
        from ..trainer.flow import lora

        if not distributed.is_main():
            return ()
        if not (model.policy.is_adapted or comfyui.in_comfyui()):  # which would be found out after a long training
            logger.warning(
                "%s: all weights were trained, so there is no adapter. otca export RUN writes the model", self.TITLE
            )
            return ()
        run = model.run
        if run is not None and not comfyui.executes(run.node):
            run = None  # a graph that does not record what it trains must not write over what is on record
        own = run.identity() if run is not None else {}
        metadata = lora.workflow_metadata(prompt or {}, (extra_pnginfo or {}).get("workflow")) | own
        files = lora.save_named(model, paths.lora_folder(), self._free_name(model, run, filename), metadata)
        if run is None:
            _saved_outside.setdefault(model, set()).update(files)
        return {"ui": {"text": [str(path) for path in files]}, "result": ()}

    def _free_name(self, model, run, filename):
        """A run overwrites its own file, as at every iteration on the canvas, and nobody else's."""
        from ..trainer.flow import lora

        def foreign(name):
            places = lora.files(model, paths.lora_folder() / f"{name}.safetensors").values()
            return [place for place in places if not _is_ours(model, run, place)]

        name, number = filename, 1
        while found := foreign(name):
            if not comfyui.in_comfyui():  # where a file is written as it was told, or not at all
                raise ValueError(
                    f"filename = {filename!r}: {found[0]} is there, and is not of this run; the run's own adapter is saved "
                    "beside it. Fix: give another filename, or move that file elsewhere"
                )
            number += 1
            name = f"{filename}-{number}"
        return name


def _is_ours(model, run, place):
    """Whether there is no such file yet, or it holds what this very run, or this model outside of any, saved before."""
    from ..trainer.flow import lora

    if not place.exists():
        return True
    if run is None:
        return place in _saved_outside.get(model, ())
    return lora.belongs_to(place, run.identity())


_saved_outside = weakref.WeakKeyDictionary()  # model: the files that it wrote while it belonged to no run


def _plain_name(name, value):
    """True for a name that stays in its folder (and for a linked input, which is None here), else what is wrong."""
    try:
        return True if value is None else bool(plain_name(value))
    except ValueError as error:
        return f"{name} = {value!r} {error}"
