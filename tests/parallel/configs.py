"""The codecs that are tested with real ranks. No framework is imported: Horovod's front ends do not share a process."""

from __future__ import annotations

from hvd_compress.parameters import parameters_of
from hvd_compress.registry import codec_class, codec_names

_CHOSEN = {
    "none": "none",
    "topk": "topk:density=0.1",
    "topk-model": "topk:density=0.1,scope=model,rebudget_steps=2",
    "topk-plain": "topk:density=0.1,error_feedback=false",
    "topk-float16": "topk:density=0.1,value_dtype=float16,index_codec=u32",
    "topk-bfloat16": "topk:density=0.3,value_dtype=bfloat16,index_codec=u16",
    "topk-ef21": "topk:density=0.1,feedback=ef21",
    "randomk": "randomk:density=0.1",
    "randomk-ef21": "randomk:density=0.1,feedback=ef21,eta=0.5",
    "randomk-unbiased": "randomk:density=0.3,mode=unbiased",
    "randomk-float16": "randomk:density=0.1,selection=uniform,value_dtype=float16",
    "randomk-block": "randomk:density=0.1,selection=block",
    "cast-float16": "cast:dtype=float16",
    "cast-float16-feedback": "cast:dtype=float16,error_feedback=true",
    "cast-bfloat16": "cast:dtype=bfloat16",
    "cast-bfloat16-feedback": "cast:dtype=bfloat16,error_feedback=true",
    "qsgd": "qsgd",
    "qsgd-feedback": "qsgd:bits=3,error_feedback=true",
    "qsgd-elias": "qsgd:packing=elias",
    "topk-qsgd": "topk_qsgd:density=0.1",
    "dgc": "dgc:density=0.1,momentum=0.5",
    "dgc-warmup": "dgc:density=0.1,momentum=0.5,nesterov=true,warmup_steps=4",
    "signsgd": "signsgd",
    "signum": "signsgd:momentum=0.9",
    "jointsq": "jointsq:bits_per_entry=1.0",
    "jointsq-model": "jointsq:bits_per_entry=1.0,scope=model,rebudget_steps=2",
}


def _usual(name: str) -> str:
    """A codec as it comes; where it has a density, one at which some 50 steps show that it trains."""
    return f"{name}:density=0.1" if "density" in parameters_of(codec_class(name)) else name


_CODECS_CHOSEN = {config.partition(":")[0] for config in _CHOSEN.values()}
_OTHERS = [name for name in codec_names() if not codec_class(name).wrapper and name not in _CODECS_CHOSEN]
CODECS = _CHOSEN | {name: _usual(name) for name in _OTHERS}
"""One entry for each way a codec works, and for each codec that no line above names."""
