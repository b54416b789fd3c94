"""Layers that the library torchao quantises: what it makes of them, and what Octavo does."""

import pytest
import torch

from octavo.quantization.config import SchemeOptions
from octavo.quantization.torchao import parse_torchao

pytest.importorskip("torchao", reason="needs requirements/references.txt; run on an AMD EPYC")

from torchao.core.config import config_to_dict
from torchao.quantization import IntxWeightOnlyConfig, MappingType, PerAxis, PerGroup, quantize_


@pytest.mark.parametrize("mapping", ["SYMMETRIC", "ASYMMETRIC"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_integers_of_all_widths(bits: int, mapping: str) -> None:
    for granularity in (PerGroup(32), PerAxis(0)):
        config = IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), granularity, MappingType[mapping])
        module = torch.nn.Sequential(torch.nn.Linear(64, 16, bias=False))
        quantize_(module, config)
        own = module[0].weight
        layout = parse_torchao({"quant_type": {"default": config_to_dict(config)}}, SchemeOptions()).layout("a.b")
        assert layout is not None
        tensors = {"_weight_qdata": own.qdata, "_weight_scale": own.scale, "_weight_zero_point": own.zero_point}
        expected = layout.tensors((16, 64))
        assert all(tensors[name].shape in stored.shapes for name, stored in expected.items())
        assert all(tensors[name].dtype in stored.dtypes for name, stored in expected.items())
        found = layout.read({name: tensors[name] for name in expected}, (16, 64))
        torch.testing.assert_close(found.values(), own.dequantize(), rtol=0, atol=0)
