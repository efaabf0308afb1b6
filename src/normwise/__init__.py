"""normwise: normalization for Transformers, as a library and a command on PyTorch.

The public names are loaded on first use, so that `normwise --help` does not wait for torch.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

LOADED_IN = os.getpid()  # a process that was forked since then has none of torch's threads

if TYPE_CHECKING:
    from normwise.errors import NormwiseError as NormwiseError
    from normwise.errors import PairingWarning as PairingWarning
    from normwise.lab.settings import CompareSettings as CompareSettings
    from normwise.lab.settings import RunSettings as RunSettings
    from normwise.model.config import NormAt as NormAt
    from normwise.model.config import TransformerConfig as TransformerConfig
    from normwise.model.config import reference_config as reference_config
    from normwise.model.encoder_decoder import EncoderDecoder as EncoderDecoder
    from normwise.model.transformer import Transformer as Transformer
    from normwise.norms.batch_norm import BatchNormPosition as BatchNormPosition
    from normwise.norms.batch_norm import BatchNormTokens as BatchNormTokens
    from normwise.norms.elementwise import Derf as Derf
    from normwise.norms.elementwise import DynamicTanh as DynamicTanh
    from normwise.norms.group_norm import GroupNorm as GroupNorm
    from normwise.norms.layer_norm import LayerNorm as LayerNorm
    from normwise.norms.no_norm import NoNorm as NoNorm
    from normwise.norms.partial_rms_norm import PartialRMSNorm as PartialRMSNorm
    from normwise.norms.power_norm import PowerNorm as PowerNorm
    from normwise.norms.registry import make_norm as make_norm
    from normwise.norms.regularized_batch_norm import RegularizedBatchNorm as RegularizedBatchNorm
    from normwise.norms.regularized_batch_norm import batch_penalty as batch_penalty
    from normwise.norms.rms_norm import RMSNorm as RMSNorm
    from normwise.norms.scale_norm import ScaleNorm as ScaleNorm
    from normwise.ops.dispatch import backend as backend
    from normwise.ops.dispatch import which_backend as which_backend
    from normwise.ops.functional import add_layer_norm as add_layer_norm
    from normwise.ops.functional import add_rms_norm as add_rms_norm
    from normwise.ops.functional import layer_norm as layer_norm
    from normwise.ops.functional import layer_norm_add as layer_norm_add
    from normwise.ops.functional import rms_norm as rms_norm
    from normwise.ops.functional import rms_norm_add as rms_norm_add
    from normwise.probe.admin import profile_admin as profile_admin
    from normwise.probe.discrepancy import batch_discrepancy as batch_discrepancy
    from normwise.probe.monitor import Monitor as Monitor
    from normwise.probe.preflight import assert_healthy as assert_healthy
    from normwise.probe.preflight import check as check
    from normwise.probe.stream import StreamRecorder as StreamRecorder
    from normwise.report.notebook import Comparison as Comparison
    from normwise.report.notebook import compare as compare
    from normwise.report.notebook import stored_comparison as stored_comparison
    from normwise.report.page import write_page as write_page
    from normwise.report.terminal import show as show
    from normwise.residual.registry import make_placement as make_placement
    from normwise.schedules import Schedule as Schedule
    from normwise.schedules import one_cycle as one_cycle
    from normwise.schedules import parameter_groups as parameter_groups
    from normwise.schedules import set_rate as set_rate
    from normwise.schedules import untuned_warmup as untuned_warmup

_HOMES = {
    "errors": ["NormwiseError", "PairingWarning"],
    "lab.settings": ["CompareSettings", "RunSettings"],
    "model.config": ["NormAt", "TransformerConfig", "reference_config"],
    "model.encoder_decoder": ["EncoderDecoder"],
    "model.transformer": ["Transformer"],
    "norms.batch_norm": ["BatchNormPosition", "BatchNormTokens"],
    "norms.elementwise": ["Derf", "DynamicTanh"],
    "norms.group_norm": ["GroupNorm"],
    "norms.layer_norm": ["LayerNorm"],
    "norms.no_norm": ["NoNorm"],
    "norms.partial_rms_norm": ["PartialRMSNorm"],
    "norms.power_norm": ["PowerNorm"],
    "norms.registry": ["make_norm"],
    "norms.regularized_batch_norm": ["RegularizedBatchNorm", "batch_penalty"],
    "norms.rms_norm": ["RMSNorm"],
    "norms.scale_norm": ["ScaleNorm"],
    "ops.dispatch": ["backend", "which_backend"],
    "ops.functional": [
        "add_layer_norm", "add_rms_norm", "layer_norm", "layer_norm_add", "rms_norm",
        "rms_norm_add",
    ],
    "probe.admin": ["profile_admin"],
    "probe.discrepancy": ["batch_discrepancy"],
    "probe.monitor": ["Monitor"],
    "probe.preflight": ["assert_healthy", "check"],
    "probe.stream": ["StreamRecorder"],
    "report.notebook": ["Comparison", "compare", "stored_comparison"],
    "report.page": ["write_page"],
    "report.terminal": ["show"],
    "residual.registry": ["make_placement"],
    "schedules": [
        "Schedule", "one_cycle", "parameter_groups", "set_rate", "untuned_warmup",
    ],
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'normwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"normwise.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
