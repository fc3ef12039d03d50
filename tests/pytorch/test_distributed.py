"""Several processes that train together have the bits of one: weights, state, and what they save."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from tests.pytorch import ranks  # noqa: E402
from tests.shared.kinds import STORED  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WORLD = 2
#: Of those that differ in a number of bits alone, one; and always one of each way in which states lie.
STRATEGIES = [
    pytest.param(
        name,
        marks=[]
        if name in ("plain", "collage-plus", "remainder-8", "fp8-moments")
        else pytest.mark.exhaustive,
    )
    for name in STORED
    if name not in ("mcf-2", "split-truncated", "remainder-16")
]


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Return the folder, what one process came to, and what each of several did."""
    own = [
        x.callspec.params for x in request.session.items if x.path == request.path and hasattr(x, "callspec")
    ]
    strategies = sorted({x["strategy"] for x in own if "strategy" in x})
    folder = str(tmp_path_factory.mktemp("runs"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = {strategy: ranks.alone(strategy, folder, WORLD) for strategy in strategies}
    torch.multiprocessing.spawn(ranks.work, (WORLD, folder, strategies), nprocs=WORLD)
    yield folder, expected, [torch.load(f"{folder}/found by {rank}") for rank in range(WORLD)]
    torch.set_num_threads(threads)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        assert torch.equal(found[name], x), name


@pytest.mark.parametrize(
    "how",
    [
        "sharded",
        "offloaded",
        "in the backward pass",
        "replicated",
        "from one",
        "from many",
        "whole",
        "flat",
        "from the first",
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processes_have_the_bits_of_one(strategy, how, runs):
    """Parts of the model in each; copies of it; gone on from what one process saved, or all did.

    And from states that PyTorch hands on in other ways, or keeps in the CPU's memory.
    """
    _, expected, found = runs
    for there in found:
        assert_same(there[strategy, how], expected[strategy])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_process_goes_on_from_what_several_saved(strategy, runs):
    folder, expected, _ = runs
    assert_same(ranks.alone_from_many(strategy, folder, WORLD), expected[strategy])


@pytest.mark.parametrize("strategy", ranks.PLACED)
def test_rows_columns_and_sums_of_parts(strategy, runs):
    """What is seen of a step is counted once, whoever has it."""
    _, _, found = runs
    expected, seen = ranks.placed(strategy)
    for there in found:
        numbers, told = there[strategy, "placed"]
        assert_same(numbers, expected)
        ((step, group, lost, edq),) = told
        assert (step, group, lost) == seen[0][:3]
        assert edq == pytest.approx(seen[0][3], rel=1e-12)


def test_scales_lie_where_their_groups_do(runs):
    """In rows, columns, and over them; of processes that have nothing, too."""
    _, _, found = runs
    expected = ranks.grouped()
    for there in found:
        assert_same(there["grouped"], expected)


def test_a_group_that_shares_a_scale_is_not_cut(runs):
    _, _, found = runs
    for there in found:
        assert "cuts a group of 128 that share a scale" in there["cut", (250,)]
        assert "that share a scale in one process, and the scale in another" in there["cut", (3, 320)]


def test_what_others_write_is_seen_and_taken(runs):
    """Of parts that lie here, too, whose writing PyTorch counts apart."""
    _, _, found = runs
    for there in found:
        told, meant = there["written"]
        assert told == [0, 1]
        assert all(meant)
