"""What stands before a training command: uv, mpirun, srun."""

import pytest

from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.launcher_prefix import without_launcher

INSIDE = [
    ("python t.py -n 3", "python t.py -n 3", None, None),
    ("mpirun -n 8 python t.py", "python t.py", 8, 8),
    ("mpirun -np 8 -x A=b --bind-to none -mca btl ^x t.py", "t.py", 8, 8),
    ("mpiexec -n16 -ppn 8 -genv A b python t.py", "python t.py", 16, 8),
    ("srun -N2 --ntasks-per-node=4 --gres=gpu:4 python t.py", "python t.py", 8, 4),
    ("srun --ntasks 6 --nodes 2 -l python t.py", "python t.py", 6, 3),
    ("srun -N 2 torchrun --nproc-per-node 8 t.py", "torchrun --nproc-per-node 8 t.py", 2, 1),
    ("uv run t.py --steps 3", "python t.py --steps 3", None, None),
    ("uv run --extra gpu --no-sync torchrun t.py", "torchrun t.py", None, None),
    ("uv run -m torch.distributed.run t.py", "python -m torch.distributed.run t.py", None, None),
    ("env A=1 B= python t.py", "python t.py", None, None),
    ("mpirun -n 2 env A=1 python t.py", "python t.py", 2, 2),
    ("mpirun -n 2 uv run --project p python t.py", "python t.py", 2, 2),
]


@pytest.mark.parametrize(("words", "inside", "ranks", "each"), INSIDE)
def test_the_command_inside_is_found_with_its_ranks(words, inside, ranks, each):
    found = without_launcher(words.split(), {})
    assert " ".join(found.command) == inside
    assert (found.ranks, found.each) == (ranks, each)


def test_uv_stays_before_the_command_with_its_own_options():
    words = ["uv", "run", "--extra", "gpu", "-p", "3.11", "--", "python", "t.py"]
    assert without_launcher(words, {}).prefix == tuple(words[:-2])


def test_srun_inside_of_a_job_takes_its_tasks_from_slurm_s_variables():
    job = {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"}
    found = without_launcher(["srun", "python", "t.py"], job)
    assert (found.ranks, found.each) == (8, 4)
    told = found.variables(6)
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES")
    assert [told[name] for name in names] == ["6", "2", "1", "8", "2"]


def test_variables_before_a_command_are_given_to_it():
    assert without_launcher(["env", "A=1", "B=c=d", "python", "t.py", "E=2"], {}).given == {
        "A": "1",
        "B": "c=d",
    }


def test_mpi_tells_a_rank_its_place_and_the_variables_of_its_options():
    told = without_launcher(["mpirun", "-n", "4", "-x", "A=b=c", "python", "t.py"], {}).variables(3)
    assert (told["OMPI_COMM_WORLD_RANK"], told["OMPI_COMM_WORLD_LOCAL_SIZE"]) == ("3", "4")
    assert told["A"] == "b=c"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mpirun python t.py", "of how many ranks"),
        ("mpirun -n two python t.py", "a number was expected"),
        ("mpirun -n 2 --new-option python t.py", "--new-option: this option is not known"),
        ("srun -n 4", "nothing is started"),
        ("env -i python t.py", "env -i: this option is not known"),
    ],
)
def test_what_cannot_be_understood_is_named(words, said):
    with pytest.raises(VramBudgetError, match=said):
        without_launcher(words.split(), {})


def test_a_script_whose_dependencies_uv_installs_is_refused_with_what_to_do(tmp_path):
    script = tmp_path / "t.py"
    script.write_text("# /// script\n# dependencies = ['torch']\n# ///\n")
    with pytest.raises(VramBudgetError, match="own dependencies") as caught:
        without_launcher(["uv", "run", str(script)], {})
    assert "uv python find --script" in caught.value.hint
