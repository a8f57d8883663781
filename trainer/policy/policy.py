"""The policy that a flow model carries: what is trained, its optimizer and average, and the other weights it can act with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...host import distributed
from ..types import OLD, THETA, StepSettings
from .adapters import TRAINED, Adapter, Adapters


@dataclass
class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 1710.03740): float16 has no numbers for most gradients of a large model.

    A power of two, so that nothing but underflow changes; 1 for every other dtype.
    """

    value: float = 1.0
    good: int = 0  # updates since it last changed

    PATIENCE, MOST = 200, 2.0**24

    @classmethod
    def of(cls, dtype: torch.dtype) -> LossScale:
        return cls(2.0**16 if dtype == torch.float16 else 1.0)

    def undo(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Takes the scale out of the gradients."""
        if self.value != 1:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / self.value)

    def overflowed(self) -> None:
        self.value, self.good = max(1.0, self.value / 2), 0

    def held(self) -> None:
        self.good += 1
        if 1 < self.value < self.MOST and self.good >= self.PATIENCE:
            self.value, self.good = self.value * 2, 0


class Average:
    """The exponential moving average of weights: avg ← d·avg + (1-d)·θ, with d = min(decay, (1+n)/(10+n)) after n steps.

    The first step takes θ as it is. To the bit what diffusers' EMAModel makes, as older runs had it.
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float):
        self.decay, self.optimization_step = decay, 0
        self.shadow_params = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor]) -> None:
        """One more step, after an update."""
        steps, self.optimization_step = self.optimization_step, self.optimization_step + 1
        keeps = min((1 + steps) / (10 + steps), self.decay) if steps else 0.0
        for shadow, parameter in zip(self.shadow_params, parameters, strict=True):
            shadow.sub_((1 - keeps) * (shadow - parameter))


class Policy:
    """The trainable part of a flow model: an adapter on its networks, or all of their weights.

    Attributes:
        version: updates that it has had.
        nonfinite_in_a_row: updates skipped since the last good one, because their gradient was not finite.
        ema: the exponential moving average of the weights, or None.
        old: the weights of the policy that samples, or None where that is the one which is trained.
        old_steps: optimizer steps since there is an old policy; its schedule counts them.
        adapter: what the adapter was made with; None where all weights are trained.
        is_sharded: the weights lie over several processes, which then have to call the networks equally often.
    """

    def __init__(self, networks: Mapping[str, Any], adapters: Mapping[str, Adapters], dtype: torch.dtype):
        """Networks that share the noise levels, and the adapters of each. `dtype`: to compute in; float32 is trained."""
        self._networks, self._adapters, self._dtype = networks, adapters, dtype
        self.adapter: Adapter | None = None
        self.is_sharded = False
        self._originals: list[Tensor] = []  # the untrained weights, where all of them are trained
        self._is_merged = False
        self._begin()

    def _begin(self) -> None:
        self.optimizer: torch.optim.Optimizer | None = None
        self.ema: Average | None = None
        self.forget_old()
        self.version = self.nonfinite_in_a_row = 0
        self.loss_scale = LossScale.of(self._dtype)

    # -- what is trained -------------------------------------------------------------------------------------------------

    def add_adapter(self, adapter: Adapter, name: str = TRAINED) -> None:
        """Attaches a LoRA adapter in float32; with B = 0 the policy starts as the reference.

        Under another name it stands beside the one that is trained, and acts instead of it.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(adapter.seed)
            for adapters in self._adapters.values():
                adapters.add(adapter, name)
        if name == TRAINED:
            self.adapter = adapter

    def replace_adapter(self, adapter: Adapter) -> None:
        for adapters in self._adapters.values():
            adapters.remove([TRAINED])
        self.forget_old()
        self.add_adapter(adapter)

    def use_adapter(self, name: str) -> None:
        """Has the adapter of that name act, instead of the others."""
        for adapters in self._adapters.values():
            adapters.use(name)

    def remove_adapters(self, names: Sequence[str]) -> None:
        """Takes adapters off that stood beside the one that is trained, which acts again."""
        for adapters in self._adapters.values():
            adapters.remove(names)

    def train_everything(self) -> None:
        """Makes all weights of the networks trainable, in float32, and keeps a copy of them as the reference.

        Several processes share them out among themselves.
        """
        for network in self._networks.values():
            network.requires_grad_(True)
        dtypes = [parameter.dtype for parameter in self.trainable_parameters()]
        for parameter in self.trainable_parameters():
            parameter.data = parameter.data.float()
        self.is_sharded = distributed.world() > 1
        for network in self._networks.values() if self.is_sharded else ():
            distributed.shard(network, self._dtype)
        parameters = zip(self.trainable_parameters(), dtypes, strict=True)
        self._originals = [parameter.detach().to(dtype, copy=True) for parameter, dtype in parameters]

    def shard_frozen(self) -> None:
        """Spreads the frozen weights over all processes, onto their devices; a process alone keeps them.

        The adapter stays whole in each of them: its gradients, moments, average and files are those of any adapter.
        """
        self.is_sharded = distributed.world() > 1
        for network in self._networks.values() if self.is_sharded else ():
            distributed.shard_frozen(network)

    def make_fresh(self) -> None:
        """Resets to what was loaded: a new adapter from the same seed, or the untrained weights; no optimizer, no average."""
        if self.adapter is not None:
            self.replace_adapter(self.adapter)
        else:
            self._copy(self._originals)
        self._begin()

    def begin_from_here(self) -> None:
        """Other weights were put in: optimizer, average and old policy, which followed the ones before, are let go."""
        version = self.version
        self._begin()
        self.version = version + 1  # what was sampled before is another policy's

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter is trained, and not the weights themselves."""
        return self.adapter is not None

    @property
    def trains_shards(self) -> bool:
        """Whether each process holds only a part of what is trained, of its gradient and of its moments."""
        return self.is_sharded and not self.is_adapted

    def trainable_named(self) -> dict[str, torch.nn.Parameter]:
        """Trained parameters by name; those of a second network have its name in front."""
        named = {}
        for number, (name, network) in enumerate(self._networks.items()):
            trained = self._adapters[name].parameters() if self.is_adapted else dict(network.named_parameters())
            named |= {f"{name}.{key}" if number else key: p for key, p in trained.items() if p.requires_grad}
        return named

    def trainable_parameters(self) -> list[torch.nn.Parameter]:
        return list(self.trainable_named().values())

    def original_dtypes(self) -> list[torch.dtype]:
        """Dtypes of the weights as loaded, in the order of `trainable_parameters`: some networks keep parts in float32."""
        return [original.dtype for original in self._originals]

    def forget_gradients(self) -> None:
        """Drops the gradients of the last update, which are not needed while the next samples are made."""
        for parameter in self.trainable_parameters():
            parameter.grad = None

    @torch.no_grad()
    def _copy(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.trainable_parameters(), values, strict=True):
            parameter.copy_(value)

    @contextlib.contextmanager
    def _each(self, state: str) -> Iterator[None]:
        """Within it the adapters of all networks are in that state: "off" or "merged"."""
        with contextlib.ExitStack() as stack:
            for adapters in self._adapters.values():
                stack.enter_context(getattr(adapters, state)())
            yield

    # -- acting with other weights ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """Within it the adapter is part of the weights: up to rounding the same velocity, sooner, and without its gradient.

        Takes as much memory again as the adapted weights of all networks. Where the adapter is off, as within `reference`, or
        all weights are trained, nothing changes. The other way round, `reference` within it, is an error.

        Raises:
            ValueError: weights that are quantized, or shared out over several processes.
        """
        if self.is_adapted and self.is_sharded:
            raise ValueError(
                "merge_adapter: each process holds a part of the weights only. Fix: merge_adapter off on SDE Sampler"
            )
        with self._each("merged"):
            self._is_merged = True
            try:
                yield
            finally:
                self._is_merged = False

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the model is the one that training started from: adapter off, or the untrained weights."""
        if self._is_merged:
            raise RuntimeError("the adapter is part of the weights: `merged` has no reference")
        if self.is_adapted:
            with self._each("off"):
                yield
            return
        with self._holding(self._originals):
            yield

    def holding_reference(self) -> contextlib.AbstractContextManager[None]:
        """`reference` for what saves the weights: an adapter stays on, and its B is 0."""
        if not self.is_adapted:
            return self.reference()
        named = self.trainable_named().items()
        return self._holding([torch.zeros_like(p) if "lora_B" in name else p.detach() for name, p in named])

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Within it the weights are their exponential moving average, if one is kept."""
        return contextlib.nullcontext() if self.ema is None else self._holding(self.ema.shadow_params)

    def sampling(self) -> contextlib.AbstractContextManager[None]:
        """Within it the policy is the one that samples, see `samples_with`."""
        return contextlib.nullcontext() if self.old is None else self._holding(self.old)

    @contextlib.contextmanager
    def _holding(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Within it what is trained has these values. The backward pass of a graph from outside has to wait until after it."""
        parameters = self.trainable_parameters()
        if self.trains_shards:  # FSDP2 knows only the memory of its parameters, so values are copied
            trained = [parameter.detach().clone() for parameter in parameters]
            self._copy(values)
            try:
                yield
            finally:
                self._copy(trained)
            return
        trained = [parameter.data for parameter in parameters]
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value.float()
        try:
            yield
        finally:
            for parameter, data in zip(parameters, trained, strict=True):
                parameter.data = data

    # -- the old policy --------------------------------------------------------------------------------------------------

    @property
    def samples_with(self) -> str:
        """Which policy the next rollout samples with, THETA or OLD; everything but a rollout takes θ, or its average."""
        return THETA if self.old is None else OLD

    def keep_old(self) -> None:
        """From now on what is trained and what samples are two: the latter stays as it is, until it follows."""
        if self.old is None:
            self.old = [parameter.detach().clone() for parameter in self.trainable_parameters()]

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """old ← decay·old + (1-decay)·θ; at a decay of 0 there is only θ again."""
        if decay == 0:
            self.old = None
        for old, parameter in zip(self.old or (), self.trainable_parameters(), strict=self.old is not None):
            old.lerp_(parameter, 1 - decay)

    def forget_old(self) -> None:
        """The policy that is trained samples too, as before there was another one."""
        self.old: list[Tensor] | None = None
        self.old_steps = 0

    # -- optimizer and average -------------------------------------------------------------------------------------------

    def optimizer_for(self, settings: StepSettings) -> torch.optim.Optimizer:
        """The AdamW of this policy, made at the first call; later calls may change its rates but keep its moments."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.trainable_parameters(), fused=True)
        self.optimizer.param_groups[0].update(lr=settings.learning_rate, weight_decay=settings.weight_decay)
        if not settings.ema_decay:
            self.ema = None
        elif self.ema is None:
            self.ema = Average(self.trainable_parameters(), settings.ema_decay)
        else:
            self.ema.decay = settings.ema_decay
        return self.optimizer

    @torch.no_grad()
    def keep_learned(self, factor: float) -> None:
        """Keeps what was learned at `factor` times the alpha of this adapter: alpha/rank·B stays. B's gradient and its first
        moment are proportional to alpha, the second moment to its square."""
        for number, (name, trained) in enumerate(self.trainable_named().items() if factor != 1 else ()):
            if "lora_B" in name:
                for kept in filter(None, (self.old, self.ema and self.ema.shadow_params)):
                    kept[number].mul_(factor)
                trained.mul_(factor)
                moments = self.optimizer.state[trained] if self.optimizer else {}
                for moment, power in (("exp_avg", 1), ("exp_avg_sq", 2)):
                    if moment in moments:
                        moments[moment].div_(factor**power)

    def move(self, device: torch.device) -> None:
        """Untrained weights, average and moments follow the networks to their device."""
        self._originals = [original.to(device) for original in self._originals]
        if self.old is not None:
            self.old = [weights.to(device) for weights in self.old]
        if self.ema is not None:
            self.ema.shadow_params = [weights.to(device) for weights in self.ema.shadow_params]
        for state in (self.optimizer.state if self.optimizer else {}).values():
            for name, value in state.items():
                state[name] = value.to(device)

    # -- its state, for a checkpoint -------------------------------------------------------------------------------------

    def trained_state(self) -> dict[str, Tensor]:
        """The trained tensors by name, whole, on the CPU.

        Where each process trains a part, all have to ask for it, here and below, and only the main one gets it.
        """
        return self.whole(self.trainable_named())

    def load_trained_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._copy([distributed.like(tensors[name], value) for name, value in self.trainable_named().items()])

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's moments and step counts, as `<parameter number>.<name>`; empty before the first update."""
        state = self.optimizer.state_dict()["state"] if self.optimizer else {}
        return self.whole(
            {f"{number}.{name}": value for number, named in state.items() for name, value in named.items()}
        )

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        parameters = self.trainable_parameters()
        self.optimizer = torch.optim.AdamW(parameters, fused=True)
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name = key.split(".")
            state.setdefault(int(number), {})[name] = distributed.like(tensor, parameters[int(number)])
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})

    def average_state(self) -> dict[str, Tensor]:
        """The moving average, as `<parameter number>`."""
        assert self.ema is not None, "asked only where an average is kept"
        return self.whole({f"{number:05d}": shadow for number, shadow in enumerate(self.ema.shadow_params)})

    def load_average_state(self, tensors: dict[str, Tensor], step: int, decay: float) -> None:
        self.ema = Average(self.trainable_parameters(), decay)
        pairs = zip(sorted(tensors), self.trainable_parameters(), strict=True)
        self.ema.shadow_params = [distributed.like(tensors[key], parameter) for key, parameter in pairs]
        self.ema.optimization_step = step

    def old_state(self) -> dict[str, Tensor]:
        """The weights of the old policy, by the names of `trained_state`; empty if it has no old policy."""
        return self.whole(dict(zip(self.trainable_named(), self.old or (), strict=self.old is not None)))

    def load_old_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Puts in what `old_state` returned."""
        named = self.trainable_named()
        self.old = [distributed.like(tensors[name], value) for name, value in named.items()] if tensors else None
        self.old_steps = steps

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the networks on the CPU, as `trained_state`."""
        state = {}
        for name, tensor in tensors.items():
            full = distributed.full(tensor)
            if distributed.is_main() or not self.trains_shards:  # one at a time, else there would be no room for them
                state[name] = full
        return state
