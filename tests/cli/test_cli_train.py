"""`stepnet train` and `stepnet predict`: nets from named data sets and CSV files, in folders."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets
from click.testing import CliRunner
from sklearn.datasets import load_iris, make_moons
from sklearn.model_selection import train_test_split

import stepnet as sn
from stepnet import training
from stepnet.cli import commands
from stepnet.estimators import FeynmanKacClassifier, NetClassifier, NetRegressor

QUICK = ("--width", "6", "--steps", "3", "--epochs", "4", "--rate", "0.02")


def call(*arguments) -> str:
    """What it says, if all is well."""
    result = CliRunner().invoke(commands.main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments) -> str:
    """The message, if not."""
    result = CliRunner().invoke(commands.main, [str(each) for each in arguments])
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
    assert "90 training samples, 60 test samples, 4 features, 3 classes" in said
    X, y = load_iris(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=3)
    same = NetClassifier("resnet", width=6, steps=3, epochs=4, rate=0.02, random_state=3).fit(X, y)
    np.testing.assert_allclose(shares(said), [same.score(X, y), same.score(X_test, y_test)], atol=5e-5)
    again = NetClassifier.load(out)
    np.testing.assert_array_equal(again.outputs(X_test), same.outputs(X_test))
    assert not list(out.rglob("*.pkl"))


def test_a_noise_level_gives_the_classifier_that_averages_over_paths(table, tmp_path):
    choices = ("train", table, "--label", "moon", "--net", "resnet", "--diffusion", 0.2, *QUICK, "--out")
    said = call(*choices, tmp_path / "whole")
    call(*choices, tmp_path / "parts", "--epochs", 2)
    call(*choices, tmp_path / "parts", "--resume")
    whole, parts = (FeynmanKacClassifier.load(tmp_path / name) for name in ("whole", "parts"))
    assert whole.diffusion == 0.2
    assert np.array_equal(whole.net_.theta, parts.net_.theta)
    assert len(shares(said)) == 2
    found = call("predict", tmp_path / "whole", table).split()
    lines = [line.split(",") for line in table.read_text().splitlines()[1:]]
    X = np.array([[float(line[0]), float(line[2])] for line in lines])
    assert found[: len(X)] == whole.predict(X).tolist()


@pytest.mark.parametrize(
    ("optimiser", "settings"), [("lbfgs", {}), ("LBFGS", {}), ("gauss_newton", {}), ("sgd", {"rate": 0.3})]
)
def test_an_optimiser_of_a_name_is_the_one_of_the_estimator(optimiser, settings, tmp_path):
    """The same weights as the estimator finds with the same settings, and more than half of both parts right."""
    rate = ("--rate", settings["rate"]) if settings else ()
    said = call(
        "train", "moons", "--optimiser", optimiser, *QUICK[:4], *rate, "--epochs", 20, "--out", tmp_path / "out"
    )
    X, y = make_moons(400, noise=0.15, random_state=0)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    same = NetClassifier(width=6, steps=3, optimiser=optimiser, epochs=20, random_state=0, **settings).fit(X, y)
    np.testing.assert_array_equal(NetClassifier.load(tmp_path / "out").net_.theta, same.net_.theta)
    np.testing.assert_allclose(shares(said), [same.score(X, y), same.score(X_test, y_test)], atol=5e-5)
    assert min(shares(said)) > 0.8
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
    told = json.loads((out / "estimator.json").read_text())
    assert told["columns"] == {"features": ["left", "right"], "label": "moon"}


def test_a_run_goes_on_as_if_it_had_never_ended(tmp_path):
    short, whole = tmp_path / "short", tmp_path / "whole"
    call("train", "moons", *QUICK, "--out", short)
    assert "or give --resume or --overwrite" in refusal("train", "moons", *QUICK, "--out", short)
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
    assert "interrupted by the user in epoch 2; run the command again with --resume to continue" in said
    assert "or give --resume or --overwrite" in refusal("train", "moons", *QUICK, "--out", tmp_path / "out")
    call("train", "moons", *QUICK, "--resume", "--out", tmp_path / "out")


def interrupted_after(count: int, monkeypatch) -> None:
    """Ctrl-C at some gradient."""
    calls, original = [], training.Objective.gradient

    def stopped(self, theta, data):
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return original(self, theta, data)

    monkeypatch.setattr(training.Objective, "gradient", stopped)


def test_an_interrupted_run_leaves_a_net_that_predicts(table, tmp_path, monkeypatch):
    interrupted_after(15, monkeypatch)
    said = refusal("train", table, "--label", "moon", *QUICK, "--epochs", 9, "--out", tmp_path / "out")
    assert "the weights found so far are in" in said
    assert shares(call("predict", tmp_path / "out", table))[0] > 0.3
    run = training.load(tmp_path / "out" / "run")
    np.testing.assert_array_equal(NetClassifier.load(tmp_path / "out").net_.theta, run.theta)


def test_an_interrupted_method_for_all_data_says_what_it_leaves_in_one_line(tmp_path, monkeypatch):
    """Nothing, or the weights found so far if the method tells them."""
    interrupted_after(5, monkeypatch)
    said = refusal("train", "moons", "--optimiser", "lbfgs", *QUICK[:4], "--out", tmp_path / "out")
    assert "Aborted" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("Error: ")]
    if (tmp_path / "out").exists():
        assert line.endswith(f"the weights found so far are in {tmp_path / 'out'}")
    else:
        assert line == (
            "Error: interrupted by the user; "
            "--optimiser lbfgs is a full-batch optimiser and stores nothing before it ends"
        )


def test_the_weights_that_an_interrupted_method_tells_of_are_kept(tmp_path, monkeypatch):
    found = {}

    def stopped(objective, data, method, **_):
        found["theta"] = np.full_like(objective.model.theta, 0.25)
        raise sn.TrainingInterrupted(SimpleNamespace(theta=found["theta"], message="interrupted by the user"))

    monkeypatch.setattr("stepnet.estimators.net_estimator.minimise", stopped)
    said = refusal("train", "moons", "--optimiser", "lbfgs", *QUICK[:4], "--out", tmp_path / "out")
    assert "the weights found so far are in" in said
    assert "--resume" not in said
    np.testing.assert_array_equal(NetClassifier.load(tmp_path / "out").net_.theta, found["theta"])


def test_a_run_that_diverged_leaves_its_last_good_weights_and_says_how_to_begin_anew(tmp_path):
    wild = ("train", "moons", *QUICK[:-2], "--optimiser", "sgd", "--out", tmp_path / "out")
    said = refusal(*wild, "--rate", "1e300")
    assert "a lower --rate and --overwrite" in said
    assert np.isfinite(NetClassifier.load(tmp_path / "out").net_.theta).all()
    np.testing.assert_array_equal(
        NetClassifier.load(tmp_path / "out").net_.theta, training.load(tmp_path / "out" / "run").theta
    )
    assert "or --overwrite" in refusal(*wild, "--rate", "0.1")
    call(*wild, "--rate", "0.1", "--overwrite")
    assert training.load(tmp_path / "out" / "run").success
    assert not (tmp_path / "out" / "run.before").exists()


def test_a_run_comes_back_if_the_one_that_was_to_replace_it_is_refused(tmp_path):
    call("train", "moons", *QUICK, "--out", tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    refusal("train", "moons", *QUICK, "--net", "hamilton", "--overwrite", "--out", tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    said = refusal("train", "moons", *QUICK, "--resume", "--overwrite", "--out", tmp_path / "out")
    assert "give only one of them" in said


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits"])
def test_a_named_set_has_the_columns_of_its_own_table(name, tmp_path):
    """As scikit-learn writes it; the lines of the README."""
    frame = getattr(sklearn.datasets, f"load_{name}")(as_frame=True).frame
    frame.iloc[::3].to_csv(tmp_path / "more.csv", index=False)
    call("train", name, *QUICK, "--out", tmp_path / name)
    said = call("predict", tmp_path / name, tmp_path / "more.csv")
    model = NetClassifier.load(tmp_path / name)
    right = model.score(frame.iloc[::3, :-1].to_numpy(), frame.target[::3])
    assert shares(said) == [pytest.approx(right, abs=5e-5)]


@pytest.mark.parametrize("page", ["README.md", "docs/estimators.md"])
def test_lines_of_the_documents_run_as_they_are_printed(page, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / page).read_text()
    monkeypatch.chdir(tmp_path)
    frame = load_iris(as_frame=True).frame
    frame.to_csv("more.csv", index=False)
    frame["species"] = np.array(["setosa", "versicolor", "virginica"])[frame.pop("target")]
    for name in ("flowers.csv", "more_flowers.csv"):
        frame.to_csv(name, index=False)
    frame.drop(columns="species").rename(columns={"petal width (cm)": "price"}).to_csv("houses.csv", index=False)
    lines = re.findall(r"^stepnet ((?:train|predict) [^#\n]*)", text, flags=re.MULTILINE)
    said = [call(*line.split()) for line in lines]
    assert len(said) >= 2
    assert all("accuracy" in each or "R2" in each for each in said)


@pytest.mark.parametrize("name", ["F.CSV", "f.txt", "plain"])
def test_a_file_is_a_file_whatever_it_is_called(name, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.rename(tmp_path / name)
    assert "90 training samples" in call("train", name, "--label", "moon", *QUICK, "--out", tmp_path / "out")


def test_the_mark_of_an_encoding_is_no_part_of_a_name(table, tmp_path):
    marked = tmp_path / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    call("train", marked, "--label", "moon", *QUICK, "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "estimator.json").read_text())["columns"]["features"] == ["left", "right"]
    assert len(shares(call("predict", tmp_path / "out", table))) == 1


def test_another_encoding_is_told_of(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes("a,b\n1,oui\n2,\u00e9t\u00e9\n".encode("latin-1"))
    said = refusal("train", path, "--out", tmp_path / "out")
    assert re.search("must be text in UTF-8, found the byte 0xe9 in line 3", said)


@pytest.fixture
def waves(tmp_path):
    """A wave over two columns as a CSV file, the target last."""
    X = np.random.default_rng(0).uniform(-2, 2, size=(200, 2))
    path = tmp_path / "waves.csv"
    rows = [[repr(float(a)), repr(float(b)), repr(float(np.sin(a) + 0.5 * b))] for a, b in X]
    with open(path, "w", newline="") as stream:
        csv.writer(stream).writerows([["a", "b", "height"], *rows])
    return path


def test_real_targets_are_a_regression(waves, tmp_path):
    out, found = tmp_path / "out", tmp_path / "found.csv"
    said = call("train", waves, *QUICK, "--epochs", 60, "--out", out)
    assert "150 training samples, 50 test samples, 2 features, regression of height" in said
    told = [float(number) for number in re.findall(r"R2 ([\d.]+), RMSE [\d.]+", said)]
    assert len(told) == 2
    assert min(told) > 0.95
    said = call("predict", out, waves, "--out", found)
    numbers = np.genfromtxt(found, delimiter=",", names=True)
    model = NetRegressor.load(out)
    np.testing.assert_array_equal(numbers["prediction"], model.predict(np.stack((numbers["a"], numbers["b"]), axis=1)))
    error = np.sqrt(np.mean((numbers["prediction"] - numbers["height"]) ** 2))
    explained = 1 - error**2 / np.var(numbers["height"])
    assert f"R2 {explained:.4f}, RMSE {error:.4g}" in said


@pytest.mark.parametrize(
    ("targets", "option", "told"),
    [
        ([0, 1, 2], (), "3 classes"),
        (["0.0", "1.0"], (), "2 classes"),
        (["x", "y"], (), "2 classes"),
        (range(30), (), "regression of b"),
        ([0.5, 1, 2], (), "regression of b"),
        ([0, 1, 2], ("--task", "regression"), "regression of b"),
        ([0.5, 1.5], ("--task", "classification"), "2 classes"),
    ],
)
def test_targets_tell_the_task_unless_it_is_given(targets, option, told, tmp_path):
    path = tmp_path / "table.csv"
    lines = [f"{k},{targets[k % len(targets)]}" for k in range(60)]
    path.write_text("\n".join(("a,b", *lines)) + "\n")
    assert told in call("train", path, *QUICK, "--epochs", 1, *option, "--out", tmp_path / "out")


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
        ("moons", ("--net", "mlp", "--diffusion", "0.2"), "one-step scheme"),
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
        ("a,b\n1,x\n2,x\n3,x\n4,y\n", "every class must have two samples or more.*found one of y"),
        ("a,b\n1,x\n2,x\n3,y\n4,y\n", "--test must leave a sample of each of 2 classes"),
        ("a;b\n1;x\n2;y\n", "at least two columns, with commas between them"),
    ],
)
def test_bad_files_are_refused(text, message, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert re.search(message, refusal("train", path, "--epochs", 1, "--out", tmp_path / "out"), flags=re.DOTALL)


def test_a_folder_and_a_file_that_do_not_fit(table, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other.csv"
    assert "holds no net" in refusal("predict", tmp_path / "nothing", table)
    call("train", table, "--label", "moon", *QUICK, "--out", out)
    other.write_text("left,centre\n1,2\n")
    assert "right is missing" in refusal("predict", out, other)
    assert "one of left, moon, right; found 'sun'" in refusal("train", table, "--label", "sun", "--out", tmp_path / "x")


@pytest.mark.parametrize("content", ["a,b\n" + "9" * 200_000 + ",1\n", 'a,b\n"' + "x" * 200_000 + '",1\n'])
def test_a_table_that_the_reader_of_csv_refuses_is_named(content, tmp_path):
    (tmp_path / "wide.csv").write_text(content)
    message = refusal("train", tmp_path / "wide.csv", "--out", tmp_path / "out")
    assert "wide.csv is not a CSV file: field larger than field limit" in message
    assert not (tmp_path / "out").exists()


def test_a_folder_without_columns_of_a_table_is_refused(tmp_path):
    sn.estimators.NetClassifier(width=4, steps=2, epochs=1).fit([[0.0], [1.0]] * 4, [0, 1] * 4).save(tmp_path / "own")
    (tmp_path / "table.csv").write_text("a\n1\n")
    assert "does not name the columns" in refusal("predict", tmp_path / "own", tmp_path / "table.csv")
    for content in ("", "{", "[]", '{"format": 3}'):
        (tmp_path / "own" / "estimator.json").write_text(content)
        assert "own" in refusal("predict", tmp_path / "own", tmp_path / "table.csv")
