"""Calls on the meta device, whose tensors have shapes and no numbers, as they would be on a GPU; and the bytes that are alive.

What asks for numbers gets the answer that takes the most memory: all of a mask counts. Only what a tokenizer makes has numbers,
in main memory, and keeps them: so it is known how long a text is. `Words` stands for a tokenizer that is not here.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as tracing
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BatchEncoding

META = torch.device("meta")
# What CUDA's autocast computes in the lower precision, and what in float32, as far as the networks use it.
ATTENTION = "scaled_dot_product_attention"
LOWERED = {ATTENTION, *"linear matmul __matmul__ bmm mm addmm baddbmm einsum conv1d conv2d conv3d".split()}
IN_FLOAT32 = set("layer_norm group_norm rms_norm softmax pow __pow__ rsqrt exp log sum cumsum".split())


@contextlib.contextmanager
def as_on_a_gpu(autocast: torch.dtype = torch.float32, reads: bool = False) -> Iterator[None]:
    """Within it calls behave as `_AsOnAGpu` says, and every number of a mask counts as one that is not 0."""
    all_count = tracing.patch(meta_nonzero_assume_all_nonzero=True)  # pyright: ignore[reportAttributeAccessIssue] torch adds it
    with _AsOnAGpu(autocast, reads), all_count:
        yield


class _AsOnAGpu(TorchFunctionMode):
    """CUDA's autocast to that dtype, and attention that keeps no matrix of tokens by tokens."""

    def __init__(self, autocast: torch.dtype, reads: bool):
        """`autocast`: float32 for none. `reads`: what tokenizers make is being read."""
        super().__init__()
        self.autocast, self.reads = autocast, reads

    def __torch_function__(self, func, types, args: Any = (), kwargs: Any = None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if args and isinstance(args[0], Tensor):
            if args[0].is_meta and name == "__bool__":
                return True
            if args[0].is_meta and name == "cpu":
                return args[0]
            if self.reads and name == "to" and not (args[0].is_meta or args[0].is_floating_point()):
                return _stays(*args, **kwargs)
        if self.autocast != torch.float32 and (name in LOWERED or name in IN_FLOAT32):
            to = torch.float32 if name in IN_FLOAT32 else self.autocast
            args, kwargs = _cast(args, to), _cast(kwargs, to)
        return _attention(*args, **kwargs) if name == ATTENTION else func(*args, **kwargs)


def _stays(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`tensor.to(…)` without its device."""
    values = (*args, *kwargs.values())
    return tensor.to(next((value for value in values if isinstance(value, torch.dtype)), tensor.dtype))


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    if isinstance(value, dict):
        return {name: _cast(item, dtype) for name, item in value.items()}
    return type(value)(_cast(item, dtype) for item in value) if type(value) in (list, tuple) else value


class Live(TorchDispatchMode):
    """Within it, `now` is the size of all storages that operators have made and that are still held, `peak` the most of it."""

    def __init__(self, held: Iterable[Tensor] = ()):
        """`held`: tensors from before, which do not count, and nor do views of them."""
        super().__init__()
        # A storage's Python object lives as long as the storage, once somebody holds it weakly.
        self._seen: dict[int, weakref.ref] = {}
        for tensor in held:
            self._see(tensor.untyped_storage(), 0)
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in self._seen:
                self._see(storage, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _see(self, storage: torch.UntypedStorage, size: int) -> None:
        key = id(storage)

        def gone(_) -> None:
            del self._seen[key]
            self.now -= size

        self._seen[key] = weakref.ref(storage, gone)
        if size:
            self.now += size


def there_and_back(live: Live, compute: Callable[[], Tensor], with_backward: bool = True) -> tuple[int, int, int]:
    """Kept bytes, and what the forward and the backward pass have at most beside them."""
    with torch.enable_grad():
        result = compute()
        kept, forward, live.peak = live.now, live.peak, live.now
        if with_backward:
            # `torch.autograd.backward` without what is around it, within which no mode of functions is asked.
            engine = torch.autograd.Variable._execution_engine
            gradient = torch.empty_like(result)
            engine.run_backward((result,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    return kept, forward - kept, live.peak - kept


def _tensors(value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


# What makes a token of English: a mark of a template, a word, a sign, a new line. Of Qwen-Image's template it makes as many as
# Qwen's own tokenizer.
TOKEN = re.compile(r"<\|.*?\|>|\w+|[^\w\s]|\n")


SEEN = 28  # pixels of a side that a vision-language model has one token for


class Words:
    """A token for each word and each sign of a text; all tokens are number 0. Pictures beside it add as many as Qwen2.5-VL makes
    of them, and are not looked at.

    Attributes:
        model_max_length: the most of a text.
        added_tokens_encoder: tokens that stand for learned embeddings; empty.
    """

    def __init__(self, model_max_length: int):
        self.model_max_length = model_max_length
        self.added_tokens_encoder: dict[str, int] = {}

    def tokenize(self, text: str) -> list[str]:
        return TOKEN.findall(text)

    def __call__(
        self,
        texts: str | Sequence[str] = "",
        padding: bool | str = False,
        max_length: int = 0,
        text: Sequence[str] = (),
        images: Any = None,
        **more: Any,
    ) -> BatchEncoding:
        most = max_length or self.model_max_length
        rows = [texts] if isinstance(texts, str) else texts
        rows, shown = (text or rows), images if isinstance(images, list) else [images] if images is not None else []
        tokens = sum((picture.width // SEEN) * (picture.height // SEEN) for picture in shown)
        counts = torch.tensor([min(most, len(self.tokenize(text))) + tokens for text in rows])
        mask = torch.arange(max_length if padding == "max_length" else int(counts.max())) < counts[:, None]
        return BatchEncoding({"input_ids": torch.zeros_like(mask, dtype=torch.int64), "attention_mask": mask.long()})

    def apply_chat_template(
        self, messages: Sequence, tokenize: bool = True, add_generation_prompt: bool = False, **more: Any
    ) -> str | BatchEncoding:
        chats = messages if isinstance(messages[0], list) else [messages]
        end = "<|im_start|>assistant\n" * add_generation_prompt
        texts = ["".join(map(_message, chat)) + end for chat in chats]
        return self(texts, **more) if tokenize else texts[0]


def _message(message: dict) -> str:
    content = message["content"]  # which may be a list of parts
    texts = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
    return f"<|im_start|>{message['role']}\n{' '.join(texts)}<|im_end|>\n"
