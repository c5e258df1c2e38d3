"""`stepnet train` and `stepnet predict`: classifiers from named data sets and CSV files, in folders."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_iris, make_moons
from sklearn.model_selection import train_test_split

from stepnet import cli, training
from stepnet.estimators import NetClassifier

QUICK = ("--width", "6", "--steps", "3", "--epochs", "4", "--rate", "0.02")


def call(*arguments) -> str:
    """What it says, if all is well."""
    result = CliRunner().invoke(cli.main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments) -> str:
    """The message, if not."""
    result = CliRunner().invoke(cli.main, [str(each) for each in arguments])
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    return result.output


def shares(output: str) -> list[float]:
    """The accuracies it tells of, as parts of one."""
    return [float(number) / 100 for number in re.findall(r"accuracy ([\d.]+)%", output)]


@pytest.fixture
def table(tmp_path):
    """Moons as a CSV file, with the classes in the middle column."""
    X, y = make_moons(120, noise=0.1, random_state=0)
    path = tmp_path / "moons.csv"
    with open(path, "w", newline="") as stream:
        rows = [[repr(float(a)), ("up", "down")[k], repr(float(b))] for (a, b), k in zip(X, y, strict=True)]
        csv.writer(stream).writerows([["left", "moon", "right"], *rows])
    return path


def test_a_named_set_is_learnt_as_the_estimator_does(tmp_path):
    out = tmp_path / "iris"
    said = call("train", "iris", "--net", "resnet", *QUICK, "--seed", 3, "--test", 0.4, "--out", out)
    assert "90 samples to learn, 60 to test, 4 features, 3 classes" in said
    X, y = load_iris(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=3)
    same = NetClassifier("resnet", width=6, steps=3, epochs=4, rate=0.02, random_state=3).fit(X, y)
    np.testing.assert_allclose(shares(said), [same.score(X, y), same.score(X_test, y_test)], atol=5e-5)
    again = NetClassifier.load(out)
    np.testing.assert_array_equal(again.outputs(X_test), same.outputs(X_test))
    assert not list(out.rglob("*.pkl"))


@pytest.mark.parametrize("optimiser", ["lbfgs", "gauss_newton", "sgd"])
def test_optimisers_by_name(optimiser, tmp_path):
    said = call("train", "moons", "--optimiser", optimiser, *QUICK[:-2], "--out", tmp_path / "out")
    assert len(shares(said)) == 2
    assert (tmp_path / "out" / "run").exists() == (optimiser == "sgd")


def test_a_file_is_learnt_and_predicted(table, tmp_path):
    out, found = tmp_path / "out", tmp_path / "found.csv"
    call("train", table, "--label", "moon", *QUICK, "--epochs", 40, "--out", out)
    said = call("predict", out, table, "--out", found)
    with open(found, newline="") as stream:
        names, *lines = csv.reader(stream)
    assert names == ["left", "moon", "right", "prediction"]
    right = np.mean([line[1] == line[3] for line in lines])
    assert shares(said) == [pytest.approx(right, abs=5e-5)]
    assert right > 0.8
    printed = call("predict", out, table).split("\n")
    assert printed[:120] == [line[3] for line in lines]


def test_columns_are_found_by_their_names(table, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other.csv"
    call("train", table, "--label", "moon", *QUICK, "--out", out)
    with open(table, newline="") as stream:
        lines = list(csv.reader(stream))
    other.write_text("\n".join(f"{right},{left}" for left, _, right in lines) + "\n")
    printed = call("predict", out, other)
    assert "accuracy" not in printed
    assert printed.split("\n")[:120] == call("predict", out, table).split("\n")[:120]
    assert json.loads((out / "columns.json").read_text()) == {"features": ["left", "right"], "label": "moon"}


def test_a_run_goes_on_as_if_it_had_never_ended(tmp_path):
    short, whole = tmp_path / "short", tmp_path / "whole"
    call("train", "moons", *QUICK, "--out", short)
    assert "by --resume" in refusal("train", "moons", *QUICK, "--out", short)
    more = ("train", "moons", *QUICK, "--epochs", 7)
    assert shares(call(*more, "--resume", "--out", short)) == shares(call(*more, "--out", whole))
    X, _ = make_moons(50, noise=0.1, random_state=1)
    one, other = (NetClassifier.load(folder) for folder in (short, whole))
    np.testing.assert_array_equal(one.outputs(X), other.outputs(X))
    assert training.load(short / "run").epochs == 7
    assert "holds another run" in refusal(*more, "--resume", "--out", short, "--seed", 1)


def test_an_interrupted_run_says_how_to_go_on(tmp_path, monkeypatch):
    calls, original = [], training.Objective.gradient

    def interrupted(self, theta, data):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return original(self, theta, data)

    monkeypatch.setattr(training.Objective, "gradient", interrupted)
    said = refusal("train", "moons", *QUICK, "--out", tmp_path / "out")
    assert "interrupted by the user in epoch 2; the same call with --resume goes on" in said
    assert "by --resume" in refusal("train", "moons", *QUICK, "--out", tmp_path / "out")
    call("train", "moons", *QUICK, "--resume", "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("moon", (), "there is no data set 'moon'; did you mean 'moons'"),
        ("moons", ("--net", "hamilton"), "did you mean 'hamiltonian'"),
        ("moons", ("--optimiser", "adamm"), "did you mean 'adam'"),
        ("moons", ("--optimiser", "lbfgs", "--rate", "0.1"), "`rate` is for mini-batches"),
        ("moons", ("--optimiser", "lbfgs", "--resume"), "`path` and `resume` are for mini-batches"),
        ("moons", ("--width", "5"), "`width` must be even"),
        ("moons", ("--length", "-1"), "`length` must be a positive number"),
        ("moons", ("--label", "y"), "--label is for CSV files"),
        ("moons", ("--rate", "1e300"), "what to try|rate"),
        ("nowhere.csv", (), "there is no file nowhere.csv"),
    ],
)
def test_bad_choices_are_refused(source, options, message, tmp_path):
    assert re.search(message, refusal("train", source, *options, "--epochs", 3, "--out", tmp_path / "out"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name the columns, found nothing"),
        ("1,2,3\n4,5,6\n", "must name the columns, found 1, 2, 3"),
        ("a,a,b\n1,2,3\n", "must have different names"),
        ("a,b\n", "must have lines below"),
        ("a,b\n1,x\n1\n", "line 3 of .* must have 2 columns, found 1"),
        ("a,b\none,x\n2,y\n", "line 2 of .* must have a number in the column a, found 'one'"),
        ("a,b\nnan,x\n2,y\n", "found 'nan'"),
        ("a,b\n1,x\n2,x\n3,x\n4,x\n", "at least two classes"),
    ],
)
def test_bad_files_are_refused(text, message, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert re.search(message, refusal("train", path, "--epochs", 1, "--out", tmp_path / "out"), flags=re.DOTALL)


def test_a_folder_and_a_file_that_do_not_fit(table, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other.csv"
    assert "holds no classifier" in refusal("predict", tmp_path / "nothing", table)
    call("train", table, "--label", "moon", *QUICK, "--out", out)
    other.write_text("left,centre\n1,2\n")
    assert "right is missing" in refusal("predict", out, other)
    assert "one of left, moon, right; found 'sun'" in refusal("train", table, "--label", "sun", "--out", tmp_path / "x")
