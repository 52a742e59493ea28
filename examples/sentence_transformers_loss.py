"""Train a SentenceTransformer with an objective of xmclab: SentenceTransformerTrainer, pairs of a query and a label.

Needs `pip install "xmclab[sentence-transformers]"`. The model is made here: a random vector per word, and their mean.
"""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer

import xmclab

data = xmclab.read("tiny").dataset
tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))
tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
tokenizer.train_from_iterator([*data.train.texts, *data.label_texts], WordLevelTrainer(special_tokens=["[UNK]"]))
torch.manual_seed(0)
model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64)], device="cpu")


def precision_at_1() -> float:
    """How often the nearest label of a test query is one of its own, in percent."""
    queries, labels = (
        torch.from_numpy(model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))
        for texts in (data.test.texts, data.label_texts)
    )
    best = (queries @ labels.T).argmax(dim=1).tolist()
    rows = range(len(best))
    return 100 * sum(data.test.targets_NL[row, label] > 0 for row, label in zip(rows, best, strict=True)) / len(best)


pairs = data.train.targets_NL.tocoo()
train = Dataset.from_dict(
    {
        "query": [data.train.texts[row] for row in pairs.row.tolist()],
        "text": [data.label_texts[label] for label in pairs.col.tolist()],
        "label": pairs.col.tolist(),  # which labels are the same
    }
)
loss = xmclab.SentenceTransformerLoss(model, "0.8*ds+0.2*bce", temperature=0.1)

before = precision_at_1()
with tempfile.TemporaryDirectory() as folder:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder,
        num_train_epochs=3,
        per_device_train_batch_size=256,
        learning_rate=0.02,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=train, loss=loss).train()
print(f"P@1 {before:.1f} % before, {precision_at_1():.1f} % after")
