"""Tests of finding the GPU of the training, with a stand-in for torch."""

from types import SimpleNamespace

import pytest

from rankscope.agent.sample.torch_device import (
    TorchDevice,
    TrainingDevice,
    is_built_for_amd,
    may_have_device,
    read_torch_device,
)

UUID = "00000000-0000-0000-0000-000000000001"
PCI = {"pci_domain_id": 0, "pci_bus_id": 0xC1, "pci_device_id": 2}


def torch_with(
    properties: dict[str, object] | None = None, *, initialized: bool = True, hip: str | None = None
) -> dict[str, object]:
    """torch among the modules, on device 3."""
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized,
        current_device=lambda: 3,
        get_device_properties={3: SimpleNamespace(**(properties or {}))}.__getitem__,
    )
    return {"torch": SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))}


def test_device_is_the_current_one_of_torch() -> None:
    device = read_torch_device(torch_with({"uuid": UUID, **PCI}))
    assert device == TorchDevice(index=3, uuid=f"GPU-{UUID}", pci_address="0000:c1:02.0", is_amd=False)


def test_amd_gpu_has_an_address_and_no_uuid() -> None:
    device = read_torch_device(torch_with({"uuid": UUID, **PCI}, hip="6.4"))
    assert device == TorchDevice(index=3, uuid=None, pci_address="0000:c1:02.0", is_amd=True)


def test_amd_build_is_known_before_a_gpu_is_used() -> None:
    assert is_built_for_amd(torch_with(initialized=False, hip="6.4"))
    assert not is_built_for_amd(torch_with())
    assert not is_built_for_amd({})


def test_fields_missing_in_older_torch_are_none() -> None:
    assert read_torch_device(torch_with()) == TorchDevice(index=3, uuid=None, pci_address=None, is_amd=False)


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param({}, id="torch is not imported"),
        pytest.param({"torch": SimpleNamespace()}, id="torch is still being imported"),
        pytest.param(torch_with(initialized=False), id="CUDA has not been used"),
    ],
)
def test_without_a_device_in_use_there_is_none(modules: dict[str, object]) -> None:
    assert read_torch_device(modules) is None


def test_device_is_read_until_it_is_known() -> None:
    found = TorchDevice(index=3, uuid=f"GPU-{UUID}", pci_address=None, is_amd=False)
    answers = iter([None, found])
    device = TrainingDevice(lambda: next(answers), lambda: True)
    seen = []
    for _ in range(3):
        device.observe()
        seen.append((device.seen(), device.uuid()))
    assert seen == [(None, None), (found, found.uuid), (found, found.uuid)]  # a third question would end the iterator


def test_torch_without_gpu_support_is_read_once() -> None:
    asked: list[int] = []
    device = TrainingDevice(lambda: asked.append(1), lambda: False)
    for _ in range(3):
        device.observe()
    assert (len(asked), device.seen()) == (1, None)


def test_torch_may_have_a_device_unless_built_without() -> None:
    cuda, hip, neither = SimpleNamespace(cuda="13.0"), SimpleNamespace(hip="6.4"), SimpleNamespace(cuda=None, hip=None)
    assert may_have_device({})
    assert may_have_device({"torch": SimpleNamespace()})
    assert may_have_device({"torch": SimpleNamespace(version=cuda)})
    assert may_have_device({"torch": SimpleNamespace(version=hip)})
    assert not may_have_device({"torch": SimpleNamespace(version=neither)})
