"""Memory that tapes share: what is gone makes room, what lives keeps its place."""

import torch

from octavo.platforms.tape_memory import TapeMemory


def placed(memory: TapeMemory, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in the memory."""
    return memory.place(torch.empty(shape, dtype=dtype))


def test_living_tensors_do_not_overlap() -> None:
    memory = TapeMemory()
    tensors = [placed(memory, 3, size).fill_(size) for size in range(1, 40)]
    for size, tensor in enumerate(tensors, 1):
        assert tensor.shape == (3, size)
        assert memory.holds(tensor)
        assert (tensor == size).all()


def test_the_place_of_a_tensor_that_is_gone_is_used_again() -> None:
    memory = TapeMemory()
    first, last = placed(memory, 100), placed(memory, 100)
    address = first.data_ptr()
    del first
    small, large = placed(memory, 50), placed(memory, 200)
    assert small.data_ptr() == address
    assert large.data_ptr() > last.data_ptr()


def test_a_view_keeps_the_place() -> None:
    memory = TapeMemory()
    view = placed(memory, 4, 8).fill_(1)[1:, ::2]
    placed(memory, 4, 8).fill_(2)
    assert (view == 1).all()


def test_the_place_of_a_result_is_given_away_once() -> None:
    memory = TapeMemory()
    kept, result = placed(memory, 100), placed(memory, 1000)
    memory.release(result[10:])
    memory.release(torch.empty(3))  # it lies elsewhere
    after = placed(memory, 1000)
    assert after.data_ptr() == result.data_ptr()
    del result
    assert placed(memory, 10).data_ptr() not in (kept.data_ptr(), after.data_ptr())


def test_layouts_and_sizes_are_those_of_the_form() -> None:
    memory = TapeMemory()
    form = torch.empty_strided((4, 6), (1, 4), dtype=torch.bfloat16)
    assert memory.place(form).stride() == form.stride()
    assert memory.place(form).dtype is torch.bfloat16
    empty = placed(memory, 0, 5)
    assert empty.shape == (0, 5)
    large = placed(memory, 40 << 20, dtype=torch.int16)  # more than is mapped at once
    assert memory.holds(large)
    assert not memory.holds(torch.empty(3))
