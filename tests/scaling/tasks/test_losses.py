"""Each task's sums, counts and metrics in one process, against torch's and transformers' own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from scaling.batch import Batch
from scaling.errors import ConfigError
from scaling.loop import evaluate
from scaling.losses import chunked_sum_loss, sum_loss
from scaling.tasks.base import Task
from scaling.tasks.build import build_task
from scaling.tasks.classification import Classification
from scaling.tasks.contrastive import Contrastive
from scaling.tasks.language import CausalLm, MaskedLm
from scaling.tasks.model_loss import MeanOver, ModelLoss
from scaling.train_config import TaskName
from strategies.job import LossImplementation
from strategies.model_spec import TaskKind
from tests.scaling.tasks.models import TINY

CLASSES = 5


def library_model(task: str) -> Any:
    torch.manual_seed(2)
    config = transformers.AutoConfig.for_model(**TINY[task])
    if task == "contrastive":
        return transformers.AutoModel.from_config(config)
    return transformers.AutoModelForSequenceClassification.from_config(config)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss", [sum_loss, chunked_sum_loss])
def test_smoothed_loss_matches_torch_and_transformers(loss: Any, smoothing: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 16, CLASSES), torch.randint(CLASSES, (3, 16))
    labels[1, :9] = -100
    number = int((labels != -100).sum())
    theirs = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    assert float(loss(logits, labels, smoothing=smoothing)) == pytest.approx(float(theirs) * number, rel=1e-6)
    if smoothing:
        smoother = transformers.trainer_pt_utils.LabelSmoother(epsilon=smoothing)
        assert float(theirs) == pytest.approx(float(smoother({"logits": logits}, labels)), rel=1e-6)


def test_labels_are_smoothed_in_training_only() -> None:
    logits, batch = torch.randn(4, CLASSES), labelled([0, 1, 2, 3])
    task, outputs = Classification(label_smoothing=0.2), SimpleNamespace(logits=logits)
    with torch.no_grad():
        judged = float(task.loss_of(outputs, batch))
    trained = float(task.loss_of(outputs, batch))
    assert judged == pytest.approx(float(functional.cross_entropy(logits, batch.labels, reduction="sum")))
    smoothed = functional.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=0.2)
    assert trained == pytest.approx(float(smoothed))


def labelled(labels: list[int]) -> Batch:
    return Batch(inputs={}, labels=torch.tensor(labels), num_loss_units=sum(label != -100 for label in labels))


class OneProcess:
    """As much of an engine as an evaluation asks for."""

    def __init__(self, task: Task, scores: list[Any]) -> None:
        self.task, self.model = task, torch.nn.Module()
        self._outputs = iter(scores)

    def score(self, batch: Batch) -> Any:
        return self.task.score(lambda: next(self._outputs), batch)

    def zero_scalar(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64)

    def sum_over_ranks(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(value)


def chosen(*classes: int) -> Any:
    return SimpleNamespace(logits=functional.one_hot(torch.tensor(classes), CLASSES).float())


def test_accuracy_is_not_a_mean_of_batch_means() -> None:
    # google/flax #527, keras #15509: four right in one batch and one wrong in another are 0.8, not 0.5.
    engine: Any = OneProcess(Classification(), [chosen(0, 1, 2, 3), chosen(0)])
    result = evaluate(engine, [labelled([0, 1, 2, 3]), labelled([4])])
    assert result.metrics["accuracy"] == 0.8
    assert result.num_loss_units == 5


def test_ignored_rows_count_for_nothing() -> None:
    engine: Any = OneProcess(Classification(), [chosen(0, 0, 0), chosen(1, 1, 1)])
    result = evaluate(engine, [labelled([0, 0, -100]), labelled([-100, -100, -100])])
    assert (result.metrics["accuracy"], result.num_loss_units) == (1.0, 2)


def test_macro_f1_matches_a_worked_example() -> None:
    # Of three classes by hand: class 0 F1 = 2*1/(2+1), class 1 2*1/(1+2), class 2 2*1/(2+2); two classes never occur.
    engine: Any = OneProcess(Classification(), [chosen(0, 1, 1, 2, 2)])
    result = evaluate(engine, [labelled([0, 0, 1, 2, 2])])
    # labelled 2, 1, 2; predicted 1, 2, 2; right 1, 1, 2
    assert result.metrics["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / CLASSES)
    assert result.metrics["accuracy"] == pytest.approx(4 / 5)


def test_masked_accuracy_is_over_hidden_tokens() -> None:
    engine: Any = OneProcess(MaskedLm(), [SimpleNamespace(logits=chosen(0, 1, 2, 3).logits.unsqueeze(0))])
    batch = Batch(inputs={}, labels=torch.tensor([[0, 4, -100, 3]]), num_loss_units=3)
    assert evaluate(engine, [batch]).metrics["accuracy"] == pytest.approx(2 / 3)


def pairs(model: Any, number: int, *, num_ignored: int = 0) -> Batch:
    torch.manual_seed(3)
    ids = torch.randint(256, (number + num_ignored, 9))
    ids[:, -1] = 257
    labels = torch.tensor([0] * number + [-100] * num_ignored)
    size = model.config.vision_config.image_size
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(len(ids), 3, size, size),
    }
    return Batch(inputs=inputs, labels=labels, num_loss_units=number)


def test_contrastive_matches_transformers_and_ignored_rows_are_nobody_s_wrong_answer() -> None:
    model, task = library_model("contrastive"), Contrastive()
    batch = pairs(model, 6)
    theirs = model(**batch.inputs, return_loss=True).loss
    theirs.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    filled = pairs(model, 6, num_ignored=2)
    filled = Batch(
        inputs={name: torch.cat([batch.inputs[name], each[6:]]) for name, each in filled.inputs.items()},
        labels=filled.labels,
        num_loss_units=6,
    )
    for ours in (batch, filled):
        model.zero_grad()
        loss = task.loss_sum(model, ours) / 6
        assert float(loss.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6)
        loss.backward()
        for name, each in model.named_parameters():
            if name in gradients:
                assert torch.allclose(each.grad, gradients[name], rtol=1e-4, atol=1e-6), name


def test_contrastive_says_that_it_depends_on_the_cut() -> None:
    model, task = library_model("contrastive"), Contrastive()
    whole = pairs(model, 8)
    halves = [
        Batch(
            inputs={name: each[part] for name, each in whole.inputs.items()},
            labels=whole.labels[part],
            num_loss_units=4,
        )
        for part in (slice(0, 4), slice(4, 8))
    ]
    with torch.no_grad():
        apart = sum(float(task.loss_sum(model, half)) for half in halves) / 8
        together = float(task.loss_sum(model, whole)) / 8
    assert task.couples_samples
    assert together - apart == pytest.approx(torch.tensor(2.0).log().item(), abs=0.1)  # ln 8 - ln 4
    others = (CausalLm(), MaskedLm(), Classification(), ModelLoss(mean_over=MeanOver.LABELS))
    assert not any(other.couples_samples for other in others)


def test_a_model_s_own_loss_is_weighted_by_what_it_is_a_mean_of() -> None:
    model = library_model("sequence-classification")
    task = build_task(TaskName.HF_LOSS, TaskKind.SEQUENCE_CLASSIFICATION)
    ids = torch.randint(256, (5, 7))
    whole = Batch(inputs={"input_ids": ids}, labels=torch.tensor([0, 1, 2, 3, 0]), num_loss_units=5)
    parts = [
        Batch(
            inputs={"input_ids": ids[part]},
            labels=whole.labels[part],
            num_loss_units=task.num_units(whole.labels[part]),
        )
        for part in (slice(0, 2), slice(2, 5))
    ]
    with torch.no_grad():
        expected = float(model(input_ids=ids, labels=whole.labels).loss)
        assert sum(float(task.loss_sum(model, part)) for part in parts) / 5 == pytest.approx(expected, rel=1e-6)
    nothing = Batch(inputs={"input_ids": ids}, labels=torch.full((5,), -100), num_loss_units=0)
    assert float(task.loss_sum(model, nothing).detach()) == 0.0


@pytest.mark.parametrize(
    ("labels", "mean_over", "number"),
    [
        ([[5, 6, -100], [-100, 7, 8]], MeanOver.NEXT_TOKENS, 3),
        ([[5, 6, -100], [-100, 7, 8]], MeanOver.LABELS, 4),
        ([3, -100, 0], MeanOver.SAMPLES, 2),
        ([[5, 6], [-100, 7]], MeanOver.SAMPLES, 1),
    ],
)
def test_units_of_a_model_s_own_loss(labels: Any, mean_over: MeanOver, number: int) -> None:
    assert ModelLoss(mean_over=mean_over).num_units(torch.tensor(labels)) == number


@pytest.mark.parametrize(
    ("name", "kind", "settings", "message"),
    [
        (TaskName.MASKED_LM, TaskKind.CAUSAL_LM, {}, "task=masked-lm, but the plan's model is made for causal-lm"),
        (TaskName.AUTO, TaskKind.SEQ2SEQ_LM, {}, "task=seq2seq-lm is not trained here"),
        (TaskName.HF_LOSS, TaskKind.CONTRASTIVE, {}, "task=hf-loss is not known for models made for contrastive"),
        (TaskName.HF_LOSS, TaskKind.CAUSAL_LM, {"label_smoothing": 0.1}, "label_smoothing=0.1 .* have no effect"),
        (
            TaskName.AUTO,
            TaskKind.CAUSAL_LM,
            {"label_smoothing": 0.1, "loss": LossImplementation.FUSED},
            "label_smoothing=0.1 has no effect with loss=fused",
        ),
    ],
)
def test_a_task_that_the_model_is_not_made_for_is_refused(
    name: TaskName, kind: TaskKind, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(name, kind, **settings)
