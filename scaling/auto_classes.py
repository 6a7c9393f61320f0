"""Which of transformers' automatic classes builds a model for a task."""

from __future__ import annotations

from strategies.model_spec import TaskKind

AUTO_CLASSES = {
    TaskKind.CAUSAL_LM: "AutoModelForCausalLM",
    TaskKind.MASKED_LM: "AutoModelForMaskedLM",
    TaskKind.SEQ2SEQ_LM: "AutoModelForSeq2SeqLM",
    TaskKind.SEQUENCE_CLASSIFICATION: "AutoModelForSequenceClassification",
    TaskKind.IMAGE_CLASSIFICATION: "AutoModelForImageClassification",
    TaskKind.CONTRASTIVE: "AutoModel",
}
"""Names, so that planning does not import transformers."""
TRAINED = tuple(kind for kind in TaskKind if kind is not TaskKind.SEQ2SEQ_LM)
"""What models may be made for that are trained here."""
