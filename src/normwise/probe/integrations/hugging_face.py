"""The monitor in Hugging Face's Trainer."""

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normwise.anatomy.leaves import leaf
from normwise.errors import MissingExtra
from normwise.probe.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtra("transformers", "hf", "A callback of its Trainer") from None


class MonitorCallback(TrainerCallback):
    """A `Monitor` of the model that a Trainer trains.

        trainer = Trainer(model, args, callbacks=[MonitorCallback(every=50, log="run.jsonl")])

    Steps, warm-up and precision are the Trainer's, and the loss of a step is that of all of its
    micro-batches. `monitor` is there from the first step on.

    Args:
        every: optimizer steps from sample to sample.
        options: of `Monitor`.
    """

    def __init__(self, every: int = 50, **options: Any) -> None:
        self.every = every
        self.options = options
        self.monitor: Monitor | None = None
        self._losses: list[Tensor] = []
        self._accumulated = 1
        self._handle: RemovableHandle | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None,
        optimizer: Any = None, **rest: Any,
    ) -> None:  # fmt: skip
        """Attaches the monitor."""
        if model is None:
            raise TypeError("a Trainer gives its callbacks the model")
        self.on_train_end(args, state, control)  # of a training that an exception has ended
        own = {
            "steps": state.max_steps, "warmup": args.get_warmup_steps(state.max_steps),
            "dtype": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        }  # fmt: skip
        self.monitor = Monitor(model, optimizer, self.every, **{**own, **self.options})
        self.monitor.taken = state.global_step
        self._accumulated = args.gradient_accumulation_steps
        self._handle = self.monitor.model.register_forward_hook(self._keep, with_kwargs=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Tells the monitor of an optimizer step."""
        losses, self._losses = self._losses, []
        if self.monitor is not None:
            self.monitor.step(loss=sum(losses[1:], start=losses[0]) if losses else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Leaves no trace in the model."""
        if self._handle is not None:
            self._handle.remove()
        if self.monitor is not None:
            self.monitor.close()
        self._losses.clear()

    def _keep(self, module: nn.Module, args: Any, options: dict[str, Any], out: Any) -> None:
        """The share of a micro-batch in the loss of its step: what is told the number of tokens of
        all of them has divided by it, other losses are means.
        """
        loss = leaf(out, ("loss",))
        if module.training and isinstance(loss, Tensor):
            divided = options.get("num_items_in_batch") is not None
            self._losses.append(loss.detach().mean() / (1 if divided else self._accumulated))
